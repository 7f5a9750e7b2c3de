#!/bin/sh
# Install the database servers that the tests start privately (Debian and its kin). It changes no server
# that runs: the tests start their own instances on free loopback ports. With --tell it only says what is missing.
set -eu
only_tell=${1:-}

missing=
have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }
set -- /usr/lib/postgresql/*/bin/initdb
[ -x "$1" ] || have initdb || missing="$missing postgresql"
have pgbouncer || missing="$missing pgbouncer"
have mariadbd || missing="$missing mariadb-server"
have redis-server || missing="$missing redis-server"
[ -n "$missing" ] || { echo "All database servers are there."; exit 0; }
if [ "$only_tell" = --tell ]; then
    echo "Missing:$missing. Tests that need them are left out; 'make services' installs them."
    exit 0
fi

if ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing:$missing. Install them with this system's package manager; the tests find them." >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || { echo "Missing:$missing. Run this as root, or install sudo." >&2; exit 1; }
    sudo=sudo
fi
echo "Installing$missing ..."
$sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086 - a list of package names
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
