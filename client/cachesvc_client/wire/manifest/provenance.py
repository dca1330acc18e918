"""Defines the provenance of a revision: who built it, from what, with what and when.

A manifest has it as an in-toto statement (version 1) with a SLSA provenance predicate (version 1), so that
other tools can read it. The statement is signed with the manifest. docs/provenance.md documents the fields
and the build type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..digest import Digest

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
"""Type of the statements that this client writes and reads."""
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
"""Type of the predicates that this client writes and reads."""
ATTESTATION = "application/vnd.in-toto+json"
"""Type of a statement in an envelope of its own."""
BUILD_TYPE = "urn:cachesvc:build:warm:v1"
"""Names how `cachesvc warm` builds, and so what the parameters of a statement mean."""
LOCAL_BUILDER = "cachesvc:local"
"""Builder of a revision whose builder no one vouches for."""
SOURCE = "source"
"""Name of the dependency that a CI job was started for; the registry vouches for it."""
CHECKOUT = "checkout"
"""Name of the dependency that the builder found as the checkout around its spec; no one vouches for it."""
TREE = "tree"
"""Annotation of a checkout: how its files were, compared with its commit; `CLEAN`, `CHANGED` or `UNKNOWN`."""
CLEAN, CHANGED, UNKNOWN = "clean", "changed", "unknown"
MAX_STATEMENT_BYTES = 64 << 10
"""Largest number of bytes of a statement as canonical JSON."""
_MAX_DEPENDENCIES = 200
_MAX_TEXT = 1000
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-+\--~]{1,990}")
"""Matches a URI of printable ASCII without a comma: a comma separates the conditions of a requirement."""


@dataclass(frozen=True, slots=True)
class BuilderIdentity:
    """Describes a CI job, as its verified token does. A registry vouches for it.

    ``builder``: the URI of the workflow, or of the service account. ``source``: the repository and ref that
    the job was started for, as ``git+URL@ref``. ``commit``: the commit there. ``invocation``: the URI of the
    job's run. Where the job's token says nothing, the field is empty.
    """

    builder: str
    source: str = ""
    commit: str = ""
    invocation: str = ""

    def __post_init__(self) -> None:
        for name in ("builder", "source", "invocation"):
            value = getattr(self, name)
            if (value or name == "builder") and not is_uri(value):
                raise ValueError(f"{name}: not a URI: {value[:120]!r}")
        if self.builder == LOCAL_BUILDER:
            raise ValueError(f"builder: {LOCAL_BUILDER} is no identity")


@dataclass(frozen=True, slots=True)
class Dependency:
    """Describes what a build used: a checkout, a spec, or an installed distribution. ``annotations``: what
    else is known of it."""

    name: str
    uri: str = ""
    digest: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        """Returns the commit of a checkout; empty for another dependency."""
        return self.digest.get("gitCommit", "")

    @property
    def ref(self) -> str:
        """Returns the ref of ``git+URL@ref``; empty if the URI names none."""
        ref = self.uri.rpartition("@")[2]
        return ref if ref.startswith("refs/") else ""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Describes a build. ``parameters``: what was to be built. ``environment``: the facts of the environment
    that decide. ``started`` and ``finished``: times of UTC in the form of RFC 3339."""

    builder: str
    parameters: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    dependencies: tuple[Dependency, ...] = ()
    invocation: str = ""
    started: str = ""
    finished: str = ""
    version: str = ""
    build_type: str = BUILD_TYPE

    @property
    def vouched(self) -> bool:
        """Returns whether the builder is the identity of a CI job, for which a registry vouches."""
        return self.builder != LOCAL_BUILDER

    @property
    def source(self) -> Dependency | None:
        """Returns the source for which a registry vouches."""
        return self.named(SOURCE)

    @property
    def ref(self) -> str:
        """Returns the ref for which a registry vouches; empty if there is none."""
        return self.source.ref if self.vouched and self.source else ""

    @property
    def tree(self) -> str:
        """Return how the files of the checkout were, compared with its commit; empty if nothing says it."""
        return tree_named(self.dependencies)

    def named(self, name: str) -> Dependency | None:
        """Returns the dependency of a name."""
        return next((one for one in self.dependencies if one.name == name), None)

    def statement(self, subject: str, pack: Digest) -> dict[str, Any]:
        """Returns the statement about ``pack``. ``subject``: name of what is published."""
        metadata = {
            "invocationId": self.invocation,
            "startedOn": self.started,
            "finishedOn": self.finished,
        }
        builder: dict[str, Any] = {"id": self.builder}
        if self.version:
            builder["version"] = {"cachesvc": self.version}
        return {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": subject, "digest": {"sha256": pack.hex}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "buildDefinition": {
                    "buildType": self.build_type,
                    "externalParameters": self.parameters,
                    "internalParameters": self.environment,
                    "resolvedDependencies": [_descriptor(one) for one in self.dependencies],
                },
                "runDetails": {
                    "builder": builder,
                    "metadata": {name: text for name, text in metadata.items() if text},
                },
            },
        }


def read_statement(statement: Mapping[str, Any], pack: Digest) -> Provenance | None:
    """Returns what a statement says of ``pack``; ``None`` for a statement of a type that is not read here.

    Raises ``ValueError`` for one that is malformed, or that is about another pack.
    """
    if (statement.get("_type"), statement.get("predicateType")) != (STATEMENT_TYPE, PREDICATE_TYPE):
        return None
    subjects = _list(statement, "subject")
    if len(subjects) != 1 or _digests(_object(subjects[0], "subject")) != {"sha256": pack.hex}:
        raise ValueError(f"the statement is not about the pack {pack}")
    predicate = _object(statement.get("predicate"), "predicate")
    build = _object(predicate.get("buildDefinition"), "buildDefinition")
    run = _object(predicate.get("runDetails"), "runDetails")
    metadata = _object(run.get("metadata", {}), "metadata")
    builder = _object(run.get("builder"), "builder")
    if not is_uri(builder_id := _text(builder, "id")):
        raise ValueError(f"builder: not a URI: {builder_id[:120]!r}")
    rows = _list(build, "resolvedDependencies")
    if len(rows) > _MAX_DEPENDENCIES:
        raise ValueError(f"{len(rows)} dependencies, more than the {_MAX_DEPENDENCIES} allowed")
    dependencies = tuple(_dependency(_object(row, "resolvedDependencies")) for row in rows)
    for name in (SOURCE, CHECKOUT):
        if sum(one.name == name for one in dependencies) > 1:
            raise ValueError(f"two dependencies are named {name}")
    return Provenance(
        builder=builder_id,
        parameters=_object(build.get("externalParameters", {}), "externalParameters"),
        environment=_object(build.get("internalParameters", {}), "internalParameters"),
        dependencies=dependencies,
        invocation=_text(metadata, "invocationId"),
        started=_text(metadata, "startedOn"),
        finished=_text(metadata, "finishedOn"),
        version=_text(_object(builder.get("version", {}), "version"), "cachesvc"),
        build_type=_text(build, "buildType"),
    )


def tree_named(dependencies: Iterable[Dependency]) -> str:
    """Return how the files of the checkout were, compared with its commit; empty if nothing says it."""
    texts = (one.annotations.get(TREE) for one in dependencies if one.name == CHECKOUT)
    return next((str(text) for text in texts if text in (CLEAN, CHANGED, UNKNOWN)), "")


def is_uri(text: str) -> bool:
    """Returns whether a text is a URI as provenance has it, without a path that leads upwards."""
    return bool(_URI.fullmatch(text)) and "/../" not in f"{text}/" and "/./" not in f"{text}/"


def _descriptor(dependency: Dependency) -> dict[str, Any]:
    row = {
        "name": dependency.name,
        "uri": dependency.uri,
        "digest": dependency.digest,
        "annotations": dependency.annotations,
    }
    return {name: value for name, value in row.items() if value}


def _dependency(row: Mapping[str, Any]) -> Dependency:
    annotations = _object(row.get("annotations", {}), "annotations")
    return Dependency(_text(row, "name"), _text(row, "uri"), _digests(row), annotations)


def _digests(row: Mapping[str, Any]) -> dict[str, str]:
    digests = _object(row.get("digest", {}), "digest")
    return {name: _text(digests, name) for name in digests}


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what}: an object is expected")
    return value


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"{name}: a list is expected")
    return value


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name, "")
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ValueError(f"{name}: text of at most {_MAX_TEXT} characters is expected")
    return value
