#!/bin/sh
# Make the bundles of benchmarks/gpu/gpuless.py on a machine without a GPU, with torch 2.11 for CUDA and its Triton.
#
# usage: benchmarks/gpu/gpuless.sh FOLDER DESCRIPTION        PYTHON=python3 ROWS="mlp bert" by default all
set -eu
folder=${1:?usage: benchmarks/gpu/gpuless.sh FOLDER DESCRIPTION}
description=$(realpath "${2:?usage: benchmarks/gpu/gpuless.sh FOLDER DESCRIPTION}")
tree=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$tree:$tree/client${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME="$work/home"
mkdir "$HOME"

"$python" - "$tree" "${ROWS:-}" >"$work/warm.toml" <<'END'
import json, sys
tree, rows = sys.argv[1], sys.argv[2].split()
sys.path[0:0] = [f"{tree}/benchmarks/gpu"]
import gpuless_models
print('name = "bench/gpuless"\n[defaults]\ndevice = "cuda"\nruns = 2')
print(f"paths = [{json.dumps(tree + '/benchmarks/gpu')}]")
for name, (factory, how, grad) in gpuless_models.ROWS.items():
    if rows and name not in rows:
        continue
    print(f'[[target]]\nid = "{name}"\nfactory = "gpuless_models:{factory}"\ngrad = "{grad}"')
    if "mode" in how:
        print(f'modes = ["{how["mode"]}"]')
    if how.get("dynamic"):
        print("dynamic = true")
    if "options" in how:
        print("options = {" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in how["options"].items()) + "}")
END
warm() {
	(cd "$work" && "$python" -c "import sys; sys.argv[0] = 'cachesvc'; from cachesvc.cli import main; main()" \
		warm warm.toml --for-gpu "$1" --out "$2" --json $3) >"$2.json" || true
}
mkdir -p "$work/out" "$work/other"
warm "$description" "$work/out" ""
sed 's/"name": *"[^"]*"/"name": "NVIDIA H200"/' "$description" >"$work/h200.json"
case " ${ROWS:-mlp} " in *" mlp "*) warm "$work/h200.json" "$work/other" "--target mlp" ;; esac
cp "$work/out.json" "$folder/warm.json"
for bundle in "$work"/out/*.cachesvc; do
	name=$(basename "$bundle" .cachesvc)
	name=${name#gpuless-}
	cp "$bundle" "$folder/$(echo "$name" | sed 's/-\(default\|reduce-overhead\|max-autotune.*\)$//').cachesvc"
done
for bundle in "$work"/other/*.cachesvc; do [ -e "$bundle" ] && cp "$bundle" "$folder/other_gpu.cachesvc"; done
"$python" -c "
import sys; from cachesvc_client.bundle.seal import SigningKey; from pathlib import Path
print('bench=' + str(SigningKey.load(Path(sys.argv[1])).public))" "$(find "$HOME" -name signing.key)" >"$folder/key"
ls -l "$folder"
