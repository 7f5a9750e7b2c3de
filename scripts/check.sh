#!/bin/sh
# Format, lint, types and the import contract. Stops at the first that fails.
set -eu
bin=.venv/bin
"$bin/ruff" format --check --quiet . || { echo "run: make format" >&2; exit 1; }
"$bin/ruff" check --quiet .
"$bin/mypy"
"$bin/lint-imports" --no-cache >/tmp/segue-imports.$$ 2>&1 || { cat /tmp/segue-imports.$$; rm -f /tmp/segue-imports.$$; exit 1; }
rm -f /tmp/segue-imports.$$
