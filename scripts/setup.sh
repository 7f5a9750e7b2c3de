#!/bin/sh
# Make a virtual environment with Segue, its extras and its tools. Usage: setup.sh DIRECTORY
set -eu
venv=$1

python=
for name in python3.14 python3.13 python3.12 python3.11 python3; do
    if command -v "$name" >/dev/null 2>&1 &&
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$name
        break
    fi
done
if [ -z "$python" ]; then
    echo "Segue needs Python 3.11 or newer, and found none. On Debian: apt install python3" >&2
    exit 1
fi

if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    # Debian keeps the venv module in a package of its own.
    rm -rf "$venv"
    if command -v apt-get >/dev/null 2>&1; then
        sudo=
        [ "$(id -u)" = 0 ] || sudo=sudo
        echo "Installing Debian's python3-venv ..."
        $sudo apt-get update -qq && $sudo apt-get install -y -qq python3-venv >/dev/null
    fi
    "$python" -m venv "$venv"
fi

echo "Installing Segue and its tools into $venv (about a minute the first time) ..."
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[examples,postgres,mysql,redis,mongodb,claude-agent-sdk,langchain,openai-agents]' --group dev
