#!/bin/sh
# Signs for cachesvc with an Ed25519 key that openssl reads:
#
#   openssl genpkey -algorithm ed25519 -out ci.pem
#   export CACHESVC_SIGNER="cmd:/path/to/openssl.sh /path/to/ci.pem"
#
# For a key in a hardware token or a key service, replace the two commands `openssl pkey` and `openssl pkeyutl` by
# those of its tool. What is printed stays the same: one line. Needs OpenSSL 3.0.
set -eu
if [ $# -ne 2 ]; then
    echo "openssl.sh KEY.pem public-key|sign" >&2
    exit 2
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

case $2 in
public-key)
    openssl pkey -in "$1" -pubout -outform DER -out "$folder/public"
    # An Ed25519 key is 44 bytes of DER, and the last 32 of them are the key itself.
    [ "$(wc -c <"$folder/public")" -eq 44 ] || { echo "$1: not an Ed25519 key" >&2; exit 2; }
    printf 'ed25519:%s\n' "$(tail -c 32 "$folder/public" | openssl base64 -A)"
    ;;
sign)
    # Ed25519 reads the message twice, so openssl takes a file and no pipe.
    cat >"$folder/message"
    openssl pkeyutl -sign -rawin -inkey "$1" -in "$folder/message" -out "$folder/signature"
    openssl base64 -A -in "$folder/signature"
    echo
    ;;
*)
    echo "openssl.sh KEY.pem public-key|sign" >&2
    exit 2
    ;;
esac
