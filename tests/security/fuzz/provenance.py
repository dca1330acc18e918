"""Fuzzes the provenance in a manifest that a trusted key signed, and what is required of a builder."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packing import KEY, make_pack

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.queries.provenance import provenance_facts
from cachesvc_client.wire.errors import Corrupt
from cachesvc_client.wire.manifest.provenance import Dependency, Provenance
from cachesvc_client.wire.manifest.records import PAYLOAD_TYPE
from cachesvc_client.wire.manifest.requirement import Requirement

from .choices import json_bytes, mutate, mutate_bytes
from .parsers import Check, Parser, described

NOW = 1_700_000_100
BUILD = Provenance(
    builder="https://github.com/org/app/.github/workflows/warm.yml@refs/heads/main",
    parameters={"name": "team/bert", "target": "bert", "spec": {"name": "warm.toml", "sha256": "b" * 64}},
    environment={"torch": "2.13.0"},
    dependencies=(
        Dependency("source", "git+https://github.com/org/app@refs/heads/main", {"gitCommit": "a" * 40}),
        Dependency("torch", "pkg:pypi/torch@2.13.0%2Bcpu"),
    ),
    invocation="https://github.com/org/app/actions/runs/1/attempts/1",
    started="2026-01-01T00:00:00Z",
    finished="2026-01-01T00:01:00Z",
)
GOOD = (
    "builder=https://github.com/org/app/*, ref=refs/heads/main",
    "builder=https://github.com/org/app/*",
    f"builder={BUILD.builder}, ref=refs/tags/*",
    "builder=cachesvc:local",
)


@contextmanager
def open_provenance(folder: Path) -> Iterator[Check]:
    """Yields the check of statements: what is accepted is about the pack, and can be shown."""
    _, manifest = make_pack(folder, expires=NOW + 1000)
    value: dict[str, Any] = json.loads(manifest.encode())
    statement = BUILD.statement("team/bert:latest bert", manifest.pack.digest)

    def one(choose: random.Random) -> str:
        hostile = mutate(choose, statement)
        payload = json_bytes(choose, {**value, "attestation": hostile})
        envelope = KEY.sign_bytes(payload, PAYLOAD_TYPE)
        try:
            verified = check_envelope(envelope, trusted=[KEY.public], expected=None, now=NOW)
        except Corrupt as error:
            return described(error)
        if verified.provenance is None:
            return "nothing is said"
        builder = verified.provenance.builder
        assert builder.isascii() and builder.isprintable() and " " not in builder and "," not in builder
        assert all(isinstance(text, str) for row in provenance_facts(verified.provenance) for text in row)
        subjects = verified.manifest.attestation["subject"]  # type: ignore[index]
        assert [row["digest"] for row in subjects] == [{"sha256": manifest.pack.digest.hex}]
        return f"accepted, vouched {verified.provenance.vouched}, source {bool(verified.provenance.source)}"

    yield one


@contextmanager
def open_requirement(folder: Path) -> Iterator[Check]:
    """Yields the check of requirements: what is accepted fits no builder of another owner."""
    del folder

    def one(choose: random.Random) -> str:
        text = mutate_bytes(choose, choose.choice(GOOD).encode()).decode(errors="surrogateescape")
        try:
            requirement = Requirement.parse(text)
        except ValueError as error:
            assert len(str(error)) < 1000
            return str(error)[:20]
        builder, ref = requirement.builder, requirement.ref
        assert Requirement.parse(requirement) == requirement
        assert "*" not in builder[:-1] and "*" not in (ref or "")[:-1]
        if builder.endswith("*"):
            owner = builder.split("://", 1)[1].split("/")[1].rstrip("*@#")
            assert owner and builder[-2] in "/@#", builder
            assert requirement.difference(builder[:-2] + "-of-others/x", ref, "clean") is not None, (
                requirement
            )
        assert requirement.difference(None, "refs/heads/main", "clean") is not None
        return f"accepted {builder[-1:] == '*'} {ref is None}"

    yield one


PARSERS = (Parser("provenance", open_provenance, 8), Parser("requirement", open_requirement, 4))
