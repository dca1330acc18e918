#!/usr/bin/env -S python3 -I
"""Sign for cachesvc with an Ed25519 key that an ssh-agent holds: ``ssh_agent.py COMMENT public-key|sign``.

    ssh-keygen -t ed25519 -f ci -C cachesvc-ci && ssh-add ci
    export CACHESVC_SIGNER="cmd:/path/to/ssh_agent.py cachesvc-ci"

The agent answers at ``SSH_AUTH_SOCK``. OpenSSH's agent takes messages up to 256 KiB. Its protocol:
https://datatracker.ietf.org/doc/html/draft-ietf-sshm-ssh-agent
"""

from __future__ import annotations

import base64
import os
import socket
import struct
import sys

LIST_KEYS, KEYS, SIGN, SIGNATURE = 11, 12, 13, 14
"""Numbers of the messages: SSH_AGENTC_REQUEST_IDENTITIES, its answer, SSH_AGENTC_SIGN_REQUEST, its answer."""


def main(arguments: list[str]) -> None:
    if len(arguments) != 2 or arguments[1] not in ("public-key", "sign"):
        sys.exit("ssh_agent.py COMMENT public-key|sign")
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(os.environ.get("SSH_AUTH_SOCK", ""))
            key = find_key(agent, arguments[0].encode())
            print(public_key(key) if arguments[1] == "public-key" else signature(agent, key))
    except (OSError, struct.error) as error:
        sys.exit(f"the agent at SSH_AUTH_SOCK does not answer: {error}")


def public_key(key: bytes) -> str:
    """Return a key in cachesvc's form."""
    return "ed25519:" + base64.b64encode(texts(key)[1]).decode()


def signature(agent: socket.socket, key: bytes) -> str:
    """Return the agent's signature of what stands on standard input."""
    request = text(key) + text(sys.stdin.buffer.read()) + struct.pack(">I", 0)
    answer = ask(agent, SIGN, request, SIGNATURE)
    return base64.b64encode(texts(texts(answer)[0])[1]).decode()


def find_key(agent: socket.socket, comment: bytes) -> bytes:
    """Return the agent's Ed25519 key with this comment, in SSH's form."""
    fields = texts(ask(agent, LIST_KEYS, b"", KEYS)[4:])
    for key, name in zip(fields[::2], fields[1::2], strict=True):
        if name == comment and texts(key)[0] == b"ssh-ed25519":
            return key
    sys.exit(f"the agent has no Ed25519 key with the comment {comment.decode()}")


def ask(agent: socket.socket, number: int, body: bytes, expected: int) -> bytes:
    """Send one message and return the body of the answer."""
    agent.sendall(text(bytes([number]) + body))
    with agent.makefile("rb") as stream:
        (size,) = struct.unpack(">I", stream.read(4))
        answer = stream.read(size)
    if answer[:1] != bytes([expected]):
        sys.exit("the agent refused")
    return answer[1:]


def text(data: bytes) -> bytes:
    """Return a text in SSH's form: its length and its bytes."""
    return struct.pack(">I", len(data)) + data


def texts(data: bytes) -> list[bytes]:
    """Return the texts that data consists of."""
    parts = []
    while data:
        (size,) = struct.unpack(">I", data[:4])
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    return parts


if __name__ == "__main__":
    main(sys.argv[1:])
