#!/bin/sh
# Prepare what a GPU machine without network lacks: wheels for its Python, and a redis-server with the
# libraries it needs. Run it where pip has a registry; carry FOLDER and this tree to the machine; there:
#
#   export CARRIED=FOLDER; . FOLDER/activate     installs into new folders; sets PYTHONPATH, PATH and others
#   python3 benchmarks/gpu/matrix.py --out DIR
#
# usage: benchmarks/gpu/carry.sh FOLDER [PYTHON_VERSION]       (3.12 by default)
set -eu
folder=${1:?usage: benchmarks/gpu/carry.sh FOLDER [PYTHON_VERSION]}
version=${2:-3.12}
tree=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
mkdir -p "$folder/wheels" "$folder/models"

# Versions from the lock. The machine has torch with its requirements; its own packages are as good.
"$python" "$tree/benchmarks/gpu/locked.py" "$tree/requirements/server.txt" >"$folder/requirements.txt"
# Models of rows 14 and 19, apart from the others: transformers imports torchao if it finds it.
printf 'diffusers==0.42.1\ntorchao==0.18.0\n' >"$folder/models.txt"
platforms=""
for tag in manylinux_2_28 manylinux_2_24 manylinux_2_17 manylinux2014; do platforms="$platforms --platform ${tag}_x86_64"; done
download() {
	# shellcheck disable=SC2086
	"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
		--python-version "$version" --implementation cp $platforms -d "$1" -r "$2"
}
download "$folder/wheels" "$folder/requirements.txt"
download "$folder/models" "$folder/models.txt"

if server=$(command -v redis-server); then
	mkdir -p "$folder/redis/lib"
	cp -L "$server" "$folder/redis/redis-server.bin"
	# The machine has its own C library.
	ldd "$server" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' |
		grep -Ev '/(libc|libm|libdl|libpthread|librt)\.so' | xargs -I{} cp -L {} "$folder/redis/lib/"
	cat >"$folder/redis/redis-server" <<'END'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/lib" exec "$here/redis-server.bin" "$@"
END
	chmod +x "$folder/redis/redis-server" "$folder/redis/redis-server.bin"
else
	echo "no redis-server on the PATH: the column of PyTorch's Redis cache will be left out" >&2
fi

cat >"$folder/activate" <<'END'
# Source this file with CARRIED set to this folder.
: "${CARRIED:?set CARRIED to the folder of this file}"
site=$(mktemp -d)
MATRIX_MODELS=$(mktemp -d)
SERVICE_PACKAGES=$(mktemp -d)
into() {
	python3 -m pip install -q --no-index --no-deps --disable-pip-version-check --root-user-action ignore \
		--target "$1" "$2"/*.whl
}
into "$site" "$CARRIED/wheels" && into "$MATRIX_MODELS" "$CARRIED/models"
# What a service has, which installs the client alone.
(cd "$site" && cp -r cffi* _cffi* cryptography* pycparser* zstandard* "$SERVICE_PACKAGES")
PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PATH="$PATH:$CARRIED/redis"
export PYTHONPATH PATH MATRIX_MODELS SERVICE_PACKAGES
END
du -sh "$folder"
