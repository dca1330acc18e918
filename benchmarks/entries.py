"""Warm entries of a benchmark's registry, and say how large they are."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.hosts import Failed, Registry, cachesvc, clean_environment, running_process
from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote, parse_resolved
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.protocol import ResolveRequest


def warm(spec: Path, registry: Registry, **variables: str) -> list[dict[str, Any]]:
    """Warm a spec into a registry, and return the report of each target. Raise ``Failed`` if one is not
    warm. ``variables``: of the builder, beside the registry's."""
    environment = clean_environment() | registry.builder | variables
    command = cachesvc(["cachesvc", "warm", str(spec), "--json"])
    with running_process(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate()
    try:
        targets: list[dict[str, Any]] = json.loads(out)["targets"]
    except (ValueError, KeyError):
        targets = []
    if process.returncode or not targets:
        reasons = [reason for target in targets for reason in target["reasons"]]
        raise Failed(f"cachesvc warm {spec} ended with status {process.returncode}: {'; '.join(reasons)}")
    return targets


def published(registry: Registry, name: str) -> dict[str, int]:
    """Return the bytes that a restore downloads: the pack, and the whole answer to the resolve with its
    envelope."""
    parsed = Name.parse(name)
    request = ResolveRequest(parsed.namespace, parsed.name, detect(clean_environment()), (parsed.tag,))
    with Remote(registry.url, registry.token) as remote:
        raw, _ = remote.resolve_bytes(request)
    (revision,) = parse_resolved(raw).revisions
    trusted = [PublicKey(registry.trust)]
    verified = check_envelope(revision.envelope.encode(), trusted=trusted, expected=None, now=time.time())
    return {"resolve answer": len(raw), "pack": verified.manifest.pack.size}
