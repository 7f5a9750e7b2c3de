#!/bin/sh
# Test the adapter with the newest claude-agent-sdk, in an environment of its own. Usage: newest_claude.sh
# It says which versions were tested; a failure here is a change of the SDK that the adapter must follow.
set -eu
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT

"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[postgres]' --group dev
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade claude-agent-sdk
"$venv/bin/python" -c '
import claude_agent_sdk as sdk
from claude_agent_sdk._cli_version import __cli_version__ as cli
print("claude-agent-sdk", sdk.__version__, "with CLI", cli)'
"$venv/bin/python" -m pytest tests/test_claude_agent_sdk*.py "$@"
