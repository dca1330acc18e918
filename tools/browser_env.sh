#!/bin/sh
# tools/browser_env.sh FOLDER PYTHON: what `make test-ui` needs beside .venv: Playwright and axe in FOLDER, and Chromium.
#
# FOLDER goes into PYTHONPATH, so that the tests run in .venv. Chromium comes from the distribution: Playwright's own
# build is never downloaded.
set -eu

fail() { echo "browser_env: $*" >&2; exit 1; }

[ $# -eq 2 ] || fail "usage: tools/browser_env.sh FOLDER PYTHON"
folder=$1
python=$2

cd "$(dirname "$0")/.."
rm -rf "$folder"
"$python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements/browser.txt \
    --target "$folder" || fail "pip could not install requirements/browser.txt"

for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo -n"
install() {
    $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1
}
echo "browser_env: apt: chromium ..." >&2
# The package list on a machine may be old or absent: it is fetched only if it must be.
install || { $as_root apt-get update -qq >/dev/null 2>&1 && install; } ||
    fail "Chromium is missing, and apt could not install it (as root: apt-get install chromium)"
