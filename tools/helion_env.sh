#!/bin/sh
# tools/helion_env.sh HELION SGLANG VENV [PYTHON]: makes VENV with Helion, torch for the CPU and this project.
#
# Helion (5 MB) names no torch; requirements/helion.txt has what it names, and JAX for its backend on a CPU. The wheel
# of SGLang (39 MB) is unpacked into VENV/sglang and not installed: the tests import one module of it, and the rest
# needs a GPU. VENV is relative to the folder of the project.
set -eu

fail() { echo "helion_env: $*" >&2; exit 1; }

[ $# -eq 3 ] || [ $# -eq 4 ] || fail "usage: tools/helion_env.sh HELION SGLANG VENV [PYTHON]"
helion=$1
sglang=$2
venv=$3
python=${4:-python3}

cd "$(dirname "$0")/.."
tools/cpu_env.sh requirements/helion.txt "$venv" "$python"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "helion==$helion"
"$venv/bin/python" -c 'import helion' || fail "Helion $helion does not import in $venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --upgrade --target "$venv/sglang" \
    "sglang==$sglang"
