"""Write programs that sign, honest ones and others, for the tests of CACHESVC_SIGNER."""

from __future__ import annotations

import sys
from pathlib import Path

from cachesvc_client.bundle.seal import SigningKey

REPOSITORY = Path(__file__).parents[2]
BEGINNING = """\
import base64, os, sys, time
sys.path.insert(0, {client!r})
from cachesvc_client.bundle.seal import SigningKey
key = SigningKey.from_text({key!r})
def sign(message):
    return base64.b64encode(key.sign_message(message)).decode()
if sys.argv[-1] == "public-key":
    print(key.public)
    sys.exit()
message = sys.stdin.buffer.read()
"""
HONEST = "print(sign(message))\n"


def signer_program(folder: Path, key: SigningKey, body: str = HONEST) -> tuple[str, ...]:
    """Write a program that names ``key``, and does ``body`` when it is to sign; return its words."""
    path = folder / "signer.py"
    path.write_text(BEGINNING.format(client=str(REPOSITORY / "client"), key=key.text) + body)
    return sys.executable, str(path), "--argument", "with space"
