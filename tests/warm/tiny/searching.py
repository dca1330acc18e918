"""Define a model whose code looks for a secret in its own process, in its ancestors and in its folders."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Iterator

import torch
from models import tiny


def ancestors() -> Iterator[int]:
    process = os.getppid()
    while process > 0:
        yield process
        try:
            text = pathlib.Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return
        process = int(text.rpartition(")")[2].split()[1])


def places() -> Iterator[pathlib.Path]:
    for process in (os.getpid(), *ancestors()):
        folder = pathlib.Path(f"/proc/{process}")
        yield folder / "environ"
        yield folder / "cmdline"
        with contextlib.suppress(OSError):
            yield from (folder / "fd").iterdir()
    for name in ("HOME", "TMPDIR"):
        yield from pathlib.Path(os.environ[name]).parent.rglob("*")


def searching(digest: str, size: int, answer: str) -> torch.nn.Module:
    """Write down where ``size`` bytes lie whose SHA-256 is in ``digest``.

    ``digest`` is one digest or several with commas: the spec cannot hold the secrets."""
    matches, places_read = [], 0
    for place in places():
        try:
            data = place.read_bytes()[: 1 << 20] if place.is_file() else b""
        except OSError:
            continue
        places_read += 1
        texts = (data[at : at + size] for at in range(len(data)) if data[at : at + 8] == b"ed25519-")
        if any(hashlib.sha256(text).hexdigest() in digest.split(",") for text in texts):
            matches.append(str(place))
    with open(answer, "a") as file:
        file.write(f"{places_read} {' '.join(matches)}\n")
    return tiny()
