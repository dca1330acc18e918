#!/bin/sh
# tools/torch_env.sh VERSION VENV [PYTHON]: makes VENV with torch VERSION, this project and its test tools.
#
# VERSION may name another Python too: 2.13.0-3.10 is torch 2.13.0 for python3.10, which has to be on the PATH.
# It takes the wheel of torch that pip finds, without the packages that the wheel names: a CUDA build is 0.5 to
# 0.9 GB alone and 2.5 to 3.5 GB with NVIDIA's libraries. tools/cuda_stubs.py stands in for those libraries, so
# torch imports and compiles for the CPU. What torch needs besides comes from requirements/dev.txt. VENV is relative to the folder of the project.
set -eu

fail() { echo "torch_env: $*" >&2; exit 1; }

[ $# -eq 2 ] || [ $# -eq 3 ] || fail "usage: tools/torch_env.sh VERSION VENV [PYTHON]"
version=$1
venv=$2
python=${3:-python3}
case $version in
    *-3.*) python=python${version##*-} version=${version%-*} ;;
esac
case $version in
    [0-9]*.[0-9]*.[0-9]*) ;;
    *) fail "'$version' is no version of torch: write all three numbers, such as 2.7.1" ;;
esac
for program in gcc readelf; do
    command -v "$program" >/dev/null || fail "$program is missing (apt-get install gcc binutils)"
done

cd "$(dirname "$0")/.."
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "$python could not make $venv"
echo "torch_env: torch $version into $venv ..." >&2
NO_BYTECODE=1 requirements/install.sh "$venv" "--no-deps torch==$version" || fail "torch $version could not be installed"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$venv/bin/python" tools/cuda_stubs.py "$site/torch"
"$venv/bin/python" -c 'import torch; assert not torch.cuda.is_available()' ||
    fail "torch $version does not run in $venv"
