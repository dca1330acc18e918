#!/bin/sh
# tools/flashinfer_env.sh VERSION VENV [PYTHON]: makes VENV with FlashInfer VERSION, torch for the CPU and this project.
#
# FlashInfer (15 MB) names torch, which for CUDA is gigabytes, and kernel languages that its modules of nvcc's do not
# need: it is installed without what it names, and requirements/flashinfer.txt has the rest. VENV is relative to the
# folder of the project.
set -eu

fail() { echo "flashinfer_env: $*" >&2; exit 1; }

[ $# -eq 2 ] || [ $# -eq 3 ] || fail "usage: tools/flashinfer_env.sh VERSION VENV [PYTHON]"
version=$1
venv=$2
python=${3:-python3}

cd "$(dirname "$0")/.."
tools/cpu_env.sh requirements/flashinfer.txt "$venv" "$python"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "flashinfer-python==$version"
FLASHINFER_WORKSPACE_BASE=$(mktemp -d) "$venv/bin/python" -c 'import flashinfer.jit' ||
	fail "FlashInfer $version does not import in $venv"
