#!/bin/sh
# tools/frameworks_env.sh VENV [PYTHON]: makes VENV with the frameworks of `make test-frameworks`, torch for the CPU
# and this project.
#
# timm imports torchvision, whose wheels are for CUDA: with torch for a CPU such a wheel does not import, unless a program
# declares two operators first, and what imports torchvision where it is there (transformers) would fail. So it lies
# in VENV/torchvision, for programs that ask for it. VENV is relative to the folder of the project.
set -eu

fail() { echo "frameworks_env: $*" >&2; exit 1; }

[ $# -eq 1 ] || [ $# -eq 2 ] || fail "usage: tools/frameworks_env.sh VENV [PYTHON]"
venv=$1
python=${2:-python3}

cd "$(dirname "$0")/.."
tools/cpu_env.sh requirements/frameworks.txt "$venv" "$python"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --upgrade \
    --target "$venv/torchvision" "torchvision==0.28.0"
"$venv/bin/python" -c 'import accelerate, diffusers, kserve, lightning, sentence_transformers, torchao, transformers' ||
    fail "the frameworks do not import in $venv"
