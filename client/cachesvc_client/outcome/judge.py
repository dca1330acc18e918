"""What really happened after an install: the usefulness of a start, with reasons and numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from ..graphs.key_components import differing
from ..hooks.counters import Observation
from ..kinds import KINDS
from ..node.installed import InstalledRevision
from ..wire.compare import Difference
from ..wire.digest import Digest
from ..wire.factors import Facts
from ..wire.key_components import decode
from ..wire.protocol import Rejected
from ..wire.reports import KindWork

DIFFERENCES = 12
"""Differences of keys that one report lists, at most."""
State = Literal["hit", "partial", "inert", "miss", "unused"]


@dataclass(frozen=True, slots=True)
class RevisionUse:
    """One installed revision, and what came of it.

    Attributes:
        name: The name that it is published under.
        target: Its target.
        revision: Its digest.
        files: Files that were installed.
        bytes: Their size.
        used: Its keys or kernels that the compilers took.
        state: Its outcome.
        saved: Seconds that it saved, its share of the report's; ``None`` if it was not measured.
    """

    name: str
    target: str
    revision: str
    files: int
    bytes: int
    used: int
    state: State = "unused"
    saved: float | None = None


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A part of PyTorch's own key that differs from the nearest installed entry's.

    Attributes:
        component: The part, in words.
        here: Its value in this process: a short text, or a digest where the value is long.
        entry: Its value in the entry.
    """

    component: str
    here: str
    entry: str

    def __str__(self) -> str:
        return f"{self.component}: here {self.here}, entry {self.entry}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a start came to.

    Attributes:
        state: The outcome. *hit*: restored files were used, nothing was compiled. *partial*: used, and
            something was compiled. *inert*: something was compiled, and the installed files were not used.
            *miss*: nothing was there to install. *unused*: nothing was compiled, nothing used.
        reasons: Why it is no hit, the most important reason first.
        observed: What was counted: compilations, tuning runs, compiler processes.
        revisions: What was installed, with what came of each.
        rejected: Entries that exist and do not fit, with the factor that differs.
        differences: Of an inert or partial start, the factors in which it differs from the nearest installed
            entry and that can be why, the most important first.
        facts: What this process is and asked for, by the factor table, if it was no plain hit.
            ``explain --here`` reads them.
        bytes_moved: Bytes that were downloaded.
        seconds: ``wait`` (of the compile for the restore), ``hooks`` (inside cachesvc's hooks, without the
            wait), ``compile`` (inside Inductor), and the steps of the restore.
        saved: Seconds of the builder's first call less those spent here, for the revisions that were used;
            ``None`` if it was not measured.
        kinds: What each kind of cache cost all the same.
        key_differences: After a miss, what PyTorch's own keys differ in from the nearest installed one.
        distrusted: Revisions whose first output the canary found wrong. The outcome is *inert* then.
    """

    state: State
    reasons: tuple[str, ...]
    observed: Observation
    revisions: tuple[RevisionUse, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    differences: tuple[Difference, ...] = ()
    facts: Facts = field(default_factory=dict)
    bytes_moved: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    saved: float | None = None
    kinds: dict[str, KindWork] = field(default_factory=dict)
    key_differences: tuple[KeyDifference, ...] = ()
    distrusted: tuple[str, ...] = ()

    @property
    def compilations(self) -> int:
        """Return how often something was compiled: 0 after a hit."""
        return self.observed.compilations

    @property
    def line(self) -> str:
        """Return the outcome as one line for a log."""
        seen = self.observed
        text = f"{self.state}: {seen.compilations} compilations, {seen.tuning_runs} tuning runs, {self.used}"
        return f"{text}; {self.reasons[0]}" if self.reasons else text

    @property
    def used(self) -> str:
        """How much of what was restored the compilers took, as words."""
        artifacts = sum(use.used for use in self.revisions)
        revisions = sum(use.used > 0 for use in self.revisions)
        return f"{_counted(artifacts, 'artifact')} of {_counted(revisions, 'revision')} used"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def uses(
    installed: Sequence[InstalledRevision],
    used_paths: set[str],
    used_keys: set[str],
    models: Collection[Digest] = (),
) -> tuple[RevisionUse, ...]:
    """Which revisions the compilers took something from, by path of a host kernel and by cache key.

    Revisions of one name share artifacts. An artifact that several hold counts for one of them alone: the one
    that holds most of what was used, of these one of ``models``, of these the smallest."""
    held = [
        ({record.path for record in entry.manifest.files} & used_paths) | (entry.keys & used_keys)
        for entry in installed
    ]
    counts = [0] * len(installed)
    left: set[str] = set().union(*held)

    def rank(index: int) -> tuple[int, bool, int, int]:
        manifest = installed[index].manifest
        return len(held[index] & left), manifest.workload.model in models, -len(manifest.files), -index

    while left:
        chosen = max(range(len(installed)), key=rank)
        counts[chosen] = len(held[chosen] & left)
        left -= held[chosen]
    made = []
    for entry, used in zip(installed, counts, strict=True):
        statement = entry.manifest.statement
        made.append(
            RevisionUse(
                name=str(statement.full_name),
                target=str(statement.target),
                revision=str(entry.revision),
                files=entry.files,
                bytes=entry.bytes,
                used=used,
            )
        )
    return tuple(made)


def judge(observed: Observation, revisions: Sequence[RevisionUse]) -> State:
    """The state, from what was counted: compilations, tuning runs and compiler processes."""
    if any(revision.used for revision in revisions):
        return "hit" if observed.clean else "partial"
    if observed.clean:
        return "unused"
    return "inert" if revisions else "miss"


def by_revision(
    state: State,
    installed: Sequence[InstalledRevision],
    revisions: Sequence[RevisionUse],
    saved: float | None,
    models: Collection[Digest] = (),
) -> tuple[RevisionUse, ...]:
    """The state and the saved seconds of each revision, from those of the start.

    A name may hold targets that a process does not need: what was not used beside others that were, or is of
    a model that was not compiled here, is *unused*, not *inert*. ``models``: hashes, if they are known.
    """
    built = [
        entry.manifest.measured.get("first_call", 0.0) if use.used else 0.0
        for entry, use in zip(installed, revisions, strict=True)
    ]
    made = []
    for entry, use, first_call in zip(installed, revisions, built, strict=True):
        model = entry.manifest.workload.model
        other = bool(models) and model is not None and model not in models
        own: State = state if use.used or (state == "inert" and not other) else "unused"
        share = round(saved * first_call / sum(built), 3) if saved is not None and first_call else None
        made.append(replace(use, state=own, saved=share))
    return tuple(made)


def by_kind(observed: Observation, compile_seconds: float) -> dict[str, KindWork]:
    """Return what each kind cost, for the kinds that something is counted for."""
    return {kind.name: kind.work(observed, compile_seconds) for kind in KINDS if kind.work is not None}


def key_differences(
    missed: Mapping[str, Mapping[str, str]], installed: Sequence[InstalledRevision]
) -> tuple[KeyDifference, ...]:
    """How the keys that PyTorch looked for and did not find differ from the nearest installed ones, the
    likely cause first. Empty where the entries do not say what their keys were made of."""
    facts = []
    for entry in installed:
        with suppress(ValueError):  # of a newer publisher's form
            facts.append(decode(entry.manifest.key_facts or ""))
    return tuple(
        KeyDifference(row.component, row.here, row.entry) for row in differing(missed, facts)[:DIFFERENCES]
    )
