#!/bin/sh
# Test the adapter with the newest LangGraph, in an environment of its own. Usage: newest_langgraph.sh [pytest options]
# LANGGRAPH=1.2.24 tests that version instead. It says which versions were tested; a failure here is a change of
# LangGraph that the adapter must follow.
set -eu
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT

"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[postgres,langchain]' --group dev
if [ -n "${LANGGRAPH:-}" ]; then
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "langgraph==$LANGGRAPH"
else
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade \
        langgraph langgraph-checkpoint langgraph-checkpoint-conformance langgraph-checkpoint-sqlite langchain
fi
"$venv/bin/python" -m pip list --disable-pip-version-check | grep -i -E '^(langgraph|langchain)'
"$venv/bin/python" -m pytest tests/test_langgraph*.py "$@"
