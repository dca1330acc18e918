"""Why entries fit this environment or not, factor by factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import Config
from ..detect import detect
from ..wire.factors import (
    FACTORS,
    Compatible,
    Difference,
    Factor,
    FactorValue,
    Fingerprint,
    compare,
    environment,
    inert_here,
)
from ..wire.names import Name, Tag
from ..wire.protocol import STATES, EntrySummary, EnvironmentUse, ResolveRequest
from .tables import aligned, bytes_text
from .transfer import registry_of


@dataclass(frozen=True, slots=True)
class FactorRow:
    """One line of the comparison. ``verdict``: same, differs, differs (recorded), not compared."""

    factor: str
    here: str
    entry: str
    verdict: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """One entry. ``differences`` that decide; empty if it fits. ``recorded``: those that decide nothing."""

    entry: EntrySummary
    fits: bool
    differences: tuple[Difference, ...]
    recorded: tuple[Difference, ...]
    factors: tuple[FactorRow, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """``entries``: those that fit first, then nearest first."""

    name: str
    here: Fingerprint
    entries: tuple[Judged, ...]

    @property
    def fitting(self) -> int:
        """How many fit."""
        return sum(judged.fits for judged in self.entries)


def explain(config: Config, name: Name, *, fallback: tuple[Tag, ...] = ()) -> Explanation:
    """Compares every entry under ``name`` with this environment. Raises ``NotFound``, ``Unavailable`` and
    what else ``Remote`` raises."""
    here = detect()
    tags = tuple(dict.fromkeys((name.tag, *fallback)))
    with registry_of(config) as remote:
        found = remote.resolve(
            ResolveRequest(name.namespace, name.name, here, tags=tags, lane=config.lane)
        ).tag
        chosen = Name(name.namespace, name.name, found or name.tag)
        rows = [row for row in remote.entries(chosen) if row.lane is None or row.lane == config.lane]
    return judge(str(chosen), here, rows)


def judge(name: str, here: Fingerprint, rows: Sequence[EntrySummary]) -> Explanation:
    """Pure: each entry against the fingerprint ``here``."""
    judged = [_judge(here, row) for row in rows]
    judged.sort(key=lambda one: (not one.fits, len(one.differences), -one.entry.published))
    return Explanation(name, here, tuple(judged))


def _judge(here: Fingerprint, row: EntrySummary) -> Judged:
    verdict = compare(here, row.fingerprint, row.scopes)
    decided = _withheld(here, row) if isinstance(verdict, Compatible) else verdict.differences
    recorded = verdict.recorded if isinstance(verdict, Compatible) else ()
    differing = {difference.factor: difference for difference in (*decided, *recorded)}
    factors = tuple(_row(factor, here, row, differing.get(factor.name)) for factor in FACTORS)
    return Judged(row, not decided, decided, recorded, factors)


def _withheld(here: Fingerprint, row: EntrySummary) -> tuple[Difference, ...]:
    """What fits by every factor and is not offered here, as services found it useless."""
    mine = environment(here, row.fingerprint, row.scopes)
    uses = (use for use in row.usefulness if use.environment == mine and use.quarantined is not None)
    return tuple(inert_here(row.revision, use.why) for use in uses)


def _row(factor: Factor, here: Fingerprint, row: EntrySummary, difference: Difference | None) -> FactorRow:
    mine, theirs = _text(here.get(factor.name)), _text(row.fingerprint.get(factor.name))
    if difference is not None and difference.decides:
        return FactorRow(factor.name, difference.mine, difference.theirs, "differs", difference.mend)
    if factor.scope not in ("any", *row.scopes):
        return FactorRow(factor.name, mine, theirs, f"not compared: the entry holds no {factor.scope} code")
    if factor.name not in row.fingerprint:
        return FactorRow(factor.name, mine, theirs, "not compared: the entry does not say")
    if factor.rule == "recorded":
        same = here.get(factor.name) == row.fingerprint[factor.name]
        return FactorRow(
            factor.name, mine, theirs, "same" if same else "differs, decides nothing", factor.mend
        )
    if factor.name not in here:
        return FactorRow(factor.name, mine, theirs, "accepted: unknown here")
    return FactorRow(
        factor.name, mine, theirs, {"covers": "covered", "at_least": "enough"}.get(factor.rule, "same")
    )


def _text(value: FactorValue | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(value) if len(value) <= 3 else f"{len(value)} of them"
    return str(value)


def render(explanation: Explanation) -> str:
    """For a terminal: the entries, then the factors of the nearest one that does not fit (or, if all fit,
    of the first)."""
    total = len(explanation.entries)
    parts = [f"{explanation.name}: {explanation.fitting} of {total} entries fit here"]
    parts.append(aligned((_entry_row(judged) for judged in explanation.entries), "  "))
    if not explanation.entries:
        return parts[0]
    told = [
        _use_row(explanation.here, judged.entry, use)
        for judged in explanation.entries
        for use in judged.entry.usefulness
    ]
    if told:
        parts.append("\nwhat starts came to:\n" + aligned(told, "  "))
    shown = next((judged for judged in explanation.entries if not judged.fits), explanation.entries[0])
    what = "fits" if shown.fits else "nearest that does not fit"
    parts.append(f"\nfactor by factor, {shown.entry.target} ({what}):")
    head = ("factor", "here", "entry", "verdict")
    known = [row for row in shown.factors if (row.here, row.entry) != ("-", "-")]
    rows = [(row.factor, row.here, row.entry, row.verdict) for row in known]
    parts.append(aligned([head, *rows], "  "))
    mends = [f"  {one.factor}: {one.mend}" for one in shown.differences if one.mend]
    if mends:
        parts.append("\nto mend:\n" + "\n".join(mends))
    return "\n".join(parts)


def _use_row(here: Fingerprint, row: EntrySummary, use: EnvironmentUse) -> tuple[str, str, str]:
    where = "here" if use.environment == environment(here, row.fingerprint, row.scopes) else _elsewhere(use)
    counts = [f"{getattr(use, state)} {state}" for state in STATES if getattr(use, state)]
    text = f"{', '.join(counts)}; {use.saved:.1f} s saved, {use.spent:.1f} s spent compiling"
    if use.quarantined is not None:
        text += "; not offered there"
    elif use.inert_hosts:
        text += f"; inert on {use.inert_hosts} host{'s' if use.inert_hosts > 1 else ''} since the last hit"
    return str(row.target), where, text + (f" ({use.why})" if use.why else "")


def _elsewhere(use: EnvironmentUse) -> str:
    facts = [use.facts[name] for name in ("gpu", "cpu_isa", "torch") if name in use.facts]
    return ", ".join(facts[:2]) or use.environment[:19]


def _entry_row(judged: Judged) -> tuple[str, str, str, str]:
    row = judged.entry
    why = "" if judged.fits else "; ".join(str(difference) for difference in judged.differences[:3])
    lane = f" (lane {row.lane})" if row.lane else ""
    return "fits" if judged.fits else "differs", f"{row.target}{lane}", bytes_text(row.pack_size), why
