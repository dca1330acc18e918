"""Say who builds, from what and with what: the provenance that is signed with an entry.

It names the spec and the checkout, the installed distributions that decide what is compiled, and the facts of
the environment that decide. Of variables it has the commit that a CI system names, and no other value.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cachesvc_client
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import BY_NAME, Fingerprint
from cachesvc_client.wire.manifest.provenance import (
    CHANGED,
    CHECKOUT,
    CLEAN,
    LOCAL_BUILDER,
    SOURCE,
    TREE,
    UNKNOWN,
    BuilderIdentity,
    Dependency,
    Provenance,
)
from cachesvc_client.wire.manifest.records import PackRecord
from cachesvc_client.wire.names import Lane, Name, Target
from cachesvc_client.wire.partitions import partition

from . import kinds_used
from .checkout import Tree, find_checkout, source_uri, tree_of

SPEC = "spec"
"""Name of the dependency that is the spec."""
DISTRIBUTIONS = (
    "torch",
    "torchvision",
    "torchaudio",
    "torchao",
    "transformers",
    "diffusers",
    "accelerate",
    "peft",
    "timm",
    "safetensors",
    "flash-attn",
    "xformers",
    "sglang",
    "numpy",
    *kinds_used.DISTRIBUTIONS,
)
"""Distributions that decide what a model compiles to; those that are installed are named."""


@dataclass(frozen=True, slots=True)
class BuildOrigin:
    """Describes what all targets of one run are built from. ``started``: seconds of UTC. ``identity``: the CI
    job, as the registry verified it; ``None`` if nobody vouches for it."""

    spec: str
    spec_digest: Digest
    dependencies: tuple[Dependency, ...] = ()
    identity: BuilderIdentity | None = None
    started: float = field(default_factory=time.time)
    run: str = field(default_factory=lambda: uuid.uuid4().urn)

    @classmethod
    def of(cls, spec: Path, environ: Mapping[str, str] = os.environ) -> BuildOrigin:
        """Describe a run over ``spec``, an absolute path. Raises ``OSError`` if it cannot be read."""
        checkout = _checkout(spec.parent, environ)
        dependencies = (*([checkout] if checkout else ()), *_distributions())
        return cls(spec.name, Digest.of(spec.read_bytes()), dependencies)

    def provenance(
        self, name: Name, lane: Lane | None, target: Target, fingerprint: Fingerprint, scopes: tuple[str, ...]
    ) -> Provenance:
        """Return the provenance of one target that is sealed now."""
        identity = self.identity
        spec = Dependency(SPEC, digest={"sha256": self.spec_digest.hex})
        source: tuple[Dependency, ...] = ()
        if identity is not None and identity.source:
            commit = {"gitCommit": identity.commit} if identity.commit else {}
            source = (Dependency(SOURCE, identity.source, commit),)
        parameters = {
            "name": f"{name.namespace}/{name.name}",
            "tag": str(name.tag),
            "target": str(target),
            "spec": {"name": self.spec, "sha256": self.spec_digest.hex},
        }
        return Provenance(
            builder=identity.builder if identity else LOCAL_BUILDER,
            parameters=parameters | ({"lane": str(lane)} if lane else {}),
            environment=_deciding(fingerprint, scopes),
            dependencies=(*source, spec, *self.dependencies),
            invocation=(identity.invocation if identity else "") or self.run,
            started=_time(self.started),
            finished=_time(time.time()),
            version=cachesvc_client.__version__,
        )

    def statement(self, provenance: Provenance, pack: PackRecord) -> dict[str, Any]:
        """Return the statement about the pack of a target."""
        parameters = provenance.parameters
        subject = f"{parameters['name']}:{parameters['tag']} {parameters['target']}"
        return provenance.statement(subject, pack.digest)


def _deciding(fingerprint: Fingerprint, scopes: tuple[str, ...]) -> dict[str, Any]:
    """Return the deciding facts that are no lists, and the digest of all. The manifest has the lists."""
    facts = {
        name: value
        for name, value in fingerprint.items()
        if name in BY_NAME and BY_NAME[name].decider == "cachesvc" and not isinstance(value, list)
    }
    return {**facts, "partition": str(partition(fingerprint, scopes))}


def _checkout(folder: Path, environ: Mapping[str, str]) -> Dependency | None:
    """Return the checkout around the spec; without one, what the CI system says."""
    found = find_checkout(folder)
    if found is not None:
        return Dependency(CHECKOUT, found.uri, {"gitCommit": found.commit}, _tree_facts(tree_of(found)))
    github = f"{environ.get('GITHUB_SERVER_URL', '')}/{environ.get('GITHUB_REPOSITORY', '')}"
    places = (
        ("GITHUB_SHA", github, environ.get("GITHUB_REF", "")),
        ("CI_COMMIT_SHA", environ.get("CI_PROJECT_URL", ""), ""),
    )
    for variable, url, ref in places:
        commit = environ.get(variable, "")
        if len(commit) in (40, 64) and set(commit) <= set("0123456789abcdef"):
            return Dependency(CHECKOUT, source_uri(url, ref), {"gitCommit": commit})
    return None


def _tree_facts(tree: Tree) -> dict[str, Any]:
    """Return what a statement says of the files of a checkout."""
    if not tree.changed:
        return {TREE: UNKNOWN if tree.changed is None else CLEAN}
    return {TREE: CHANGED, "changes": tree.changed, "changed": list(tree.files)}


def _distributions() -> tuple[Dependency, ...]:
    rows = []
    for name in DISTRIBUTIONS:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        rows.append(Dependency(name, f"pkg:pypi/{name}@{quote(version, safe='.-_~')}"))
    return tuple(rows)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
