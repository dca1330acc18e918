#!/bin/sh
# tools/cpu_env.sh REQUIREMENTS VENV [PYTHON]: makes VENV with a pinned set, torch 2.13.0 and this project.
#
# REQUIREMENTS is compiled without torch and without what torch for CUDA names; torch is the build for a CPU where pip
# finds one. REQUIREMENTS and VENV are relative to the folder of the project.
set -eu

fail() { echo "cpu_env: $*" >&2; exit 1; }

[ $# -eq 2 ] || [ $# -eq 3 ] || fail "usage: tools/cpu_env.sh REQUIREMENTS VENV [PYTHON]"
requirements=$1
venv=$2
python=${3:-python3}

cd "$(dirname "$0")/.."
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "$python could not make $venv"
pip() { "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@"; }
echo "cpu_env: $requirements into $venv ..." >&2
pip --require-hashes -r requirements/build.txt || echo "cpu_env: no uv here: pip goes on alone, which is slower" >&2
# Without requirements: the set is whole, and what is left out of it is 3 GB of libraries for CUDA.
if [ -x "$venv/bin/uv" ]; then
    UV_PYTHON_DOWNLOADS=never "$venv/bin/uv" pip install -q --compile-bytecode --python "$venv/bin/python" \
        --no-deps --require-hashes -r "$requirements"
else
    pip --no-deps --require-hashes -r "$requirements"
fi
pip --no-deps "torch==2.13.0+cpu" || pip --no-deps "torch==2.13.0" || fail "no torch 2.13.0"
pip --no-deps --no-build-isolation -e ./client -e .
