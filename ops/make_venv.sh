#!/usr/bin/env bash
# Makes a virtual environment in DIRECTORY with the first Python that is new enough, or says in one sentence what is missing.
# usage: [PYTHON=python3] ops/make_venv.sh DIRECTORY
set -euo pipefail

directory=$1
oldest='3, 11'

fail() {
    echo "make: $1" >&2
    exit 1
}

python=
for candidate in "${PYTHON:-python3}" python3 python3.11 python3.12 python3.13 python3.14; do
    if command -v "$candidate" >/dev/null && "$candidate" -c "import sys; sys.exit(sys.version_info < ($oldest))" 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    found=$("${PYTHON:-python3}" --version 2>/dev/null || echo "none")
    fail "Headrace needs Python 3.11 or newer, found: $found (give another with PYTHON=/path/to/python3)"
fi
# Debian and Ubuntu ship venv without ensurepip until the package python3-venv is installed.
"$python" -c 'import ensurepip, venv' 2>/dev/null \
    || fail "$python has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"

echo "making $directory with $("$python" --version) ..."
# A half-made environment would look finished to make, so it is removed.
"$python" -m venv "$directory" || { rm -rf "$directory"; fail "$python could not make a virtual environment in $directory"; }
