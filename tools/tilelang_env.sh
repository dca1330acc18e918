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
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "$python could not make $venv"
pip() { "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@"; }
echo "tilelang_env: TileLang $version into $venv ..." >&2
pip --no-deps -r requirements/tilelang.txt
pip --no-deps "torch==2.13.0+cpu" || pip --no-deps "torch==2.13.0" || fail "no torch 2.13.0"
pip --no-deps "tilelang==$version"
pip --no-deps --no-build-isolation -e ./client -e .
"$venv/bin/python" -c 'import tilelang' || fail "TileLang $version does not import in $venv"
