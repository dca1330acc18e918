"""End a program of these tests: publish where that is meant, and print the report and digests as JSON."""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

import cachesvc_client
from cachesvc_client.wire.codec import plain


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return a digest over dtypes, shapes and bytes."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.detach().contiguous()
        hashed.update(f"{whole.dtype} {tuple(whole.shape)}".encode())
        hashed.update(bytes(whole.view(-1).view(torch.uint8).tolist()))
    return hashed.hexdigest()


def end(outputs: Iterable[torch.Tensor], packages: Iterable[str], facts: Mapping[str, Any] = {}) -> None:
    """Publish in mode readwrite, and print JSON as the last line: what `described` returns, and ``facts``."""
    publish()
    tell(outputs, packages, facts)


def tell(outputs: Iterable[torch.Tensor], packages: Iterable[str], facts: Mapping[str, Any] = {}) -> None:
    """Print JSON as the last line: what `described` returns, and ``facts``."""
    print(json.dumps({**described(outputs, packages), **facts}), flush=True)


def publish() -> None:
    """Publish what this process compiled, in mode readwrite."""
    if os.environ.get("CACHESVC_MODE") == "readwrite":
        cachesvc_client.publish()


def described(outputs: Iterable[torch.Tensor], packages: Iterable[str]) -> dict[str, Any]:
    """Return the report of this process as plain values, with a digest of the outputs.

    ``packages``: the framework's packages, whose versions are in the answer."""
    report = cachesvc_client.report()
    return {
        "state": report.state,
        "reasons": list(report.reasons),
        "observed": plain(report.observed),
        "differences": [str(one) for one in (*report.compared.differences, *report.compared.key_differences)],
        "line": report.line,
        "digest": digest(outputs),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", *packages)},
    }
