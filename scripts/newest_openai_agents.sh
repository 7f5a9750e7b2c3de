#!/bin/sh
# Test the adapter with the newest openai-agents, in an environment of its own. Usage: newest_openai_agents.sh
# With OPENAI_AGENTS=0.22.3 that version is tested instead. It says which one was tested; a failure here is a
# change of the SDK that the adapter must follow.
set -eu
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT

"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable . --group dev
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "openai-agents${OPENAI_AGENTS:+==$OPENAI_AGENTS}"
"$venv/bin/python" -c '
from importlib.metadata import version
print("openai-agents", version("openai-agents"))'
"$venv/bin/python" -m pytest tests/test_openai_agents*.py "$@"
