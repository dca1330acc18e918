"""Judges what happened after an install: the outcome of a start, with reasons and numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from ..graphs.key_components import component_differences
from ..hooks.counters import Observation
from ..kinds.kind import TRACED_ALL_THE_SAME
from ..node.installed import InstalledRevision
from ..wire.compare import Difference
from ..wire.digest import Digest
from ..wire.factors import Facts
from ..wire.manifest.key_components import decode
from ..wire.requests.protocol import Rejected
from ..wire.requests.reports import KindWork
from ..wire.text import count_text

DIFFERENCES = 12
"""Differences of keys that one report lists, at most."""
OTHER_KEYS = "PyTorch looked for other keys than the installed ones: compare with cachesvc explain"
"""Reason of a start that compiled beside installed files, where nothing else is known."""
SAME_KEYS = (
    "PyTorch looked for an installed key and took no file of it: their guards do not hold here, or they are "
    "damaged"
)
"""Reason of a start that compiled for a key that is installed, where nothing else is known."""
ONLY_KERNELS = (
    "the graphs were restored, and their C++ kernels were built here: no installed kernel is for the "
    "compiler's settings of this process (ATEN_CPU_CAPABILITY, torch._inductor.config.cpp)"
)
"""Reason of a start that built kernels for restored graphs, where nothing else is known."""
TRACED_AGAIN = "the machine code was restored, and no trace under PyTorch's key for it"
"""What it means that a hit traced graphs."""
State = Literal["hit", "partial", "inert", "miss", "unused"]
"""An outcome, see `Report`."""


@dataclass(frozen=True, slots=True)
class RevisionUse:
    """Says how one installed revision was used.

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
    """Names a part in which a key of PyTorch's differs from the nearest installed entry's key.

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
class Compared:
    """Compares a start with the entries that could have served it.

    Attributes:
        rejected: Entries that exist and do not fit, with the factor that differs.
        differences: Of an inert or partial start, the factors in which it differs from the nearest installed
            entry and that can be why, the most important first.
        facts: The environment and the workload of this process, by the factor table, if it was no plain hit.
            ``explain --here`` reads them.
        key_differences: After a miss, the parts in which PyTorch's own keys differ from the nearest installed
            key.
    """

    rejected: tuple[Rejected, ...] = ()
    differences: tuple[Difference, ...] = ()
    facts: Facts = field(default_factory=dict)
    key_differences: tuple[KeyDifference, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Holds the outcome of a start, with its reasons and numbers.

    Attributes:
        state: The outcome. *hit*: restored files were used, nothing was compiled. *partial*: used, and
            something was compiled. *inert*: something was compiled, and the installed files were not used.
            *miss*: nothing was there to install, or the restore failed. *unused*: nothing was compiled,
            nothing used.
        reasons: Why it is no hit, the most important reason first.
        observed: What was counted: compilations, tuning runs, compiler processes.
        revisions: The installed revisions, with the outcome of each.
        compared: The start beside the entries that could have served it.
        bytes_moved: Bytes that were downloaded.
        seconds: ``wait`` (of the compile for the restore), ``hooks`` (inside cachesvc's hooks, without the
            wait), ``compile`` (inside Inductor), ``asked`` (of that, the wait for what a start had omitted),
            and the steps of the restore.
        saved: Seconds of the builder's first call less those spent here, for the revisions that were used;
            ``None`` if it was not measured.
        kinds: The compilations, tuning runs and seconds of each kind of cache.
        distrusted: Revisions whose first output the canary found wrong. The outcome is *inert* then.
    """

    state: State
    reasons: tuple[str, ...]
    observed: Observation
    revisions: tuple[RevisionUse, ...] = ()
    compared: Compared = field(default_factory=Compared)
    bytes_moved: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    saved: float | None = None
    kinds: dict[str, KindWork] = field(default_factory=dict)
    distrusted: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the outcome in a few lines, for a terminal or a notebook."""
        from .show_report import text

        return text(self)

    def _repr_html_(self) -> str:
        """Return the same for a notebook that shows HTML."""
        from .show_report import html

        return html(self)

    @property
    def compilations(self) -> int:
        """Return how often something was compiled: 0 after a hit."""
        return self.observed.compilations

    @property
    def line(self) -> str:
        """Return the outcome as one line for a log."""
        runs = self.observed.tuning_runs
        text = f"{self.state}: {self.compilations} compilations, {runs} tuning runs, {self.used}"
        return f"{text}; {self.reasons[0]}" if self.reasons else text

    @property
    def traced(self) -> str:
        """Return why a hit traced all the same, which costs seconds; empty if it did not, or was no hit."""
        if self.state != "hit":
            return ""
        for reason in self.reasons:
            if reason.startswith(TRACED_ALL_THE_SAME):
                return reason.removeprefix(TRACED_ALL_THE_SAME)
        return next((reason for reason in self.reasons if reason.endswith(TRACED_AGAIN)), "")

    @property
    def used(self) -> str:
        """Return in words how many restored artifacts the compilers used."""
        artifacts = sum(use.used for use in self.revisions)
        revisions = sum(use.used > 0 for use in self.revisions)
        return f"{count_text(artifacts, 'artifact')} of {count_text(revisions, 'revision')} used"


def uses(
    installed: Sequence[InstalledRevision],
    used_paths: set[str],
    used_keys: set[str],
    models: Collection[Digest] = (),
) -> tuple[RevisionUse, ...]:
    """Return how the compilers used each revision, by the paths of host kernels and by cache keys.

    Revisions of one name share artifacts. An artifact that several revisions hold counts for only one of
    them: for the revision with the most used artifacts; of several such for one of ``models``; of several
    such for the smallest.
    """
    used_of = [
        ({record.path for record in entry.manifest.files} & used_paths) | (entry.keys & used_keys)
        for entry in installed
    ]
    counts = [0] * len(installed)
    left: set[str] = set().union(*used_of)

    def rank(index: int) -> tuple[int, bool, int, int]:
        manifest = installed[index].manifest
        return len(used_of[index] & left), manifest.workload.model in models, -len(manifest.files), -index

    while left:
        best = max(range(len(installed)), key=rank)
        counts[best] = len(used_of[best] & left)
        left -= used_of[best]
    rows = []
    for entry, used in zip(installed, counts, strict=True):
        statement = entry.manifest.statement
        rows.append(
            RevisionUse(
                name=str(statement.full_name),
                target=str(statement.target),
                revision=str(entry.revision),
                files=entry.files,
                bytes=entry.bytes,
                used=used,
            )
        )
    return tuple(rows)


def judge(observed: Observation, revisions: Sequence[RevisionUse], failed: bool = False) -> State:
    """Return the outcome by the counts: compilations, tuning runs and compiler processes.

    ``failed``: whether a restore ended with an error. Where it left nothing to use, that is a *miss*, also if
    this node's own results or a warm folder spared the compile: a fresh machine would compile.
    """
    if any(revision.used for revision in revisions):
        return "hit" if observed.clean else "partial"
    if observed.clean:
        return "miss" if failed and not revisions else "unused"
    return "inert" if revisions else "miss"


def with_reason(state: State, reasons: Iterable[str]) -> tuple[str, ...]:
    """Return the reasons of an outcome: at least one where something was compiled beside installed files."""
    return tuple(reasons) or ((OTHER_KEYS,) if state in ("inert", "partial") else ())


def judge_revisions(
    state: State,
    installed: Sequence[InstalledRevision],
    revisions: Sequence[RevisionUse],
    saved: float | None,
    models: Collection[Digest] = (),
) -> tuple[RevisionUse, ...]:
    """Return each revision with its outcome and its share of the saved seconds, from those of the start.

    A name may hold targets that a process does not need. So a revision is *unused*, and not *inert*, if other
    revisions were used, or if its model was not compiled here. ``models``: the hashes of the models that were
    compiled here, if they are known.
    """
    first_calls = [
        entry.manifest.measured.get("first_call", 0.0) if use.used else 0.0
        for entry, use in zip(installed, revisions, strict=True)
    ]
    rows = []
    for entry, use, first_call in zip(installed, revisions, first_calls, strict=True):
        model = entry.manifest.workload.model
        of_other_model = bool(models) and model is not None and model not in models
        own: State = state if use.used or (state == "inert" and not of_other_model) else "unused"
        share = round(saved * first_call / sum(first_calls), 3) if saved is not None and first_call else None
        rows.append(replace(use, state=own, saved=share))
    return tuple(rows)


def key_differences(
    missed: Mapping[str, Mapping[str, str]], installed: Sequence[InstalledRevision]
) -> tuple[KeyDifference, ...]:
    """Return how the keys that PyTorch did not find differ from the nearest installed keys, the likely cause
    first.

    ``missed``: the components of those keys. Nothing is returned if the entries do not say the components of
    theirs.
    """
    facts = []
    for entry in installed:
        with suppress(ValueError):  # a newer publisher's form
            facts.append(decode(entry.manifest.key_facts or ""))
    return tuple(
        KeyDifference(row.component, row.here, row.entry)
        for row in component_differences(missed, facts)[:DIFFERENCES]
    )
