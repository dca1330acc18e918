#!/bin/sh
# requirements/install.sh VENV TORCH: fills VENV with the pinned and hashed set, torch and this project.
#
# The hashed set comes first and holds what torch needs on a CPU, so that installing torch adds torch alone
# (and the CUDA packages of the build that is found, if it has some). torch is not hashed: which build fits
# depends on the machine, and pip's own configuration says where it is. uv is faster and does not read that
# configuration, so it installs torch only where PIP_FIND_LINKS is set. Without uv, pip does everything.
set -eu
venv=$1
torch=$2
python=$venv/bin/python

say() { echo "install: $*" >&2; }

# NO_BYTECODE=1 is for an environment that few processes use: they write the bytecode of what they import.
pip_bytecode=--compile uv_bytecode=--compile-bytecode
[ -z "${NO_BYTECODE:-}" ] || pip_bytecode=--no-compile uv_bytecode=

with_pip() { "$python" -m pip install -q --disable-pip-version-check $pip_bytecode "$@"; }

install() {
    if [ -x "$venv/bin/uv" ]; then
        # pip compiles bytecode; without it every process that imports torch takes seconds more wherever
        # bytecode cannot be written, and measures nothing that a service would see.
        # shellcheck disable=SC2086  # an option or none
        UV_PYTHON_DOWNLOADS=never "$venv/bin/uv" pip install -q $uv_bytecode --python "$python" "$@" &&
            return 0
        say "uv could not; trying pip"
    fi
    with_pip "$@"
}

install_torch() {
    links=""
    for place in ${PIP_FIND_LINKS:-}; do links="$links --find-links $place"; done
    # shellcheck disable=SC2086  # both are lists of words
    if [ -n "$links" ]; then install $links $torch; else with_pip $torch; fi
}

with_pip --require-hashes -r requirements/build.txt || say "no uv here: pip goes on alone, which is slower"
hashed=requirements/dev.txt
project="-e ./client -e ."
if "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 11))'; then
    # The server and `warm` need Python 3.11: there is the client alone, with its tests.
    hashed=requirements/python310.txt project="-e ./client"
fi
install --require-hashes -r "$hashed"
say "$torch"
install_torch
# shellcheck disable=SC2086  # a list of words
install --no-deps --no-build-isolation $project
# An editable install leaves that to whoever imports first, which may be told not to write.
"$python" -m compileall -q client/cachesvc_client cachesvc
