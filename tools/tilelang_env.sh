#!/bin/sh
# tools/tilelang_env.sh VERSION VENV [PYTHON]: makes VENV with TileLang VERSION, torch for the CPU and this project.
#
# TileLang (50 MB) names torch, which for CUDA is gigabytes: it is installed without what it names, and
# requirements/tilelang.txt has the rest. VENV is relative to the folder of the project.
set -eu

fail() { echo "tilelang_env: $*" >&2; exit 1; }

[ $# -eq 2 ] || [ $# -eq 3 ] || fail "usage: tools/tilelang_env.sh VERSION VENV [PYTHON]"
version=$1
venv=$2
python=${3:-python3}

cd "$(dirname "$0")/.."
tools/cpu_env.sh requirements/tilelang.txt "$venv" "$python"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "tilelang==$version"
"$venv/bin/python" -c 'import tilelang' || fail "TileLang $version does not import in $venv"
