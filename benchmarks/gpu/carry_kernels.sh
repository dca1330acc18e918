#!/bin/sh
# Prepare what a GPU machine without network lacks for kernel_jits.py: FlashInfer, and what client and registry
# require, for its Python, in one file. Run it where pip has a registry; carry the file and this tree; there:
#
#   mkdir -p /tmp/site && tar xJf FOLDER/site.tar.xz -C /tmp/site && export PYTHONPATH=/tmp/site
#   python3 benchmarks/gpu/kernel_jits.py --out DIR
#
# usage: benchmarks/gpu/carry_kernels.sh FOLDER [PYTHON_VERSION] [FLASHINFER_VERSION]     (3.12 and 0.6.14)
set -eu
folder=${1:?usage: benchmarks/gpu/carry_kernels.sh FOLDER [PYTHON_VERSION] [FLASHINFER_VERSION]}
version=${2:-3.12}
flashinfer=${3:-0.6.14}
tree=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
mkdir -p "$folder/wheels"

# Versions from the lock. The machine has torch with its requirements, and the other packages that FlashInfer
# imports for these kernels.
"$python" "$tree/benchmarks/gpu/locked.py" "$tree/requirements/server.txt" >"$folder/requirements.txt"
# The version of apache-tvm-ffi is the one that vLLM 0.26 names beside this FlashInfer.
printf 'flashinfer-python==%s\napache-tvm-ffi==0.1.10\nnvidia-ml-py\n' "$flashinfer" >>"$folder/requirements.txt"
platforms=""
for tag in manylinux_2_28 manylinux_2_24 manylinux_2_17 manylinux2014; do platforms="$platforms --platform ${tag}_x86_64"; done
# shellcheck disable=SC2086
"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
	--python-version "$version" --implementation cp $platforms -d "$folder/wheels" -r "$folder/requirements.txt"
rm -rf "$folder/site"
# shellcheck disable=SC2086
"$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --only-binary=:all: \
	--python-version "$version" --implementation cp $platforms --target "$folder/site" "$folder"/wheels/*.whl
# What no kernel is compiled from.
for part in cutlass/python cutlass/examples cutlass/test cccl/benchmarks cccl/ci cccl/docs cccl/python; do
	rm -rf "$folder/site/flashinfer/data/$part"
done
tar cf - -C "$folder/site" . | xz -T1 -3 >"$folder/site.tar.xz"
du -h "$folder/site.tar.xz"
