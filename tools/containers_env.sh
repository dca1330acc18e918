#!/bin/sh
# tools/containers_env.sh FOLDER: what `make test-containers` needs beside .venv: buildah, podman and runc by apt, and
# FOLDER/base.tar, a Debian 12 with Debian's own Python.
#
# It stands in for the base image of the Dockerfile, which is in a registry of images: the tests ask none. It must run
# as root.
set -eu

fail() { echo "containers_env: $*" >&2; exit 1; }

[ $# -eq 1 ] || fail "usage: tools/containers_env.sh FOLDER"
[ "$(id -u)" = 0 ] || fail "containers need root (sudo make test-containers)"
cd "$(dirname "$0")/.."
mkdir -p "$1"

packages=""
for program in buildah podman runc mmdebstrap; do
    command -v "$program" >/dev/null || packages="$packages $program"
done
if [ -n "$packages" ]; then
    echo "containers_env: apt:$packages ..." >&2
    # shellcheck disable=SC2086  # a list of words
    install() {
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o DPkg::Lock::Timeout=300 $packages >/dev/null 2>&1
    }
    # The package list on a machine may be old or absent: it is fetched only if it must be.
    install || { apt-get update -qq >/dev/null 2>&1 && install; } || fail "apt could not install$packages"
fi

# Other packages than the real base has: it compiles Python itself, and has no apt package of it.
mmdebstrap --quiet --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates \
    --aptopt='Apt::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    bookworm "$1/base.tar" || fail "mmdebstrap could not make $1/base.tar"
