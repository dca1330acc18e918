"""Why entries fit this environment or not, factor by factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import Config
from ..detect import detect
from ..wire.factors import FACTORS, Compatible, Difference, Factor, FactorValue, Fingerprint, compare
from ..wire.names import Name, Tag
from ..wire.protocol import EntrySummary, ResolveRequest
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
    decided = () if isinstance(verdict, Compatible) else verdict.differences
    recorded = verdict.recorded if isinstance(verdict, Compatible) else ()
    differing = {difference.factor: difference for difference in (*decided, *recorded)}
    factors = tuple(_row(factor, here, row, differing.get(factor.name)) for factor in FACTORS)
    return Judged(row, bool(verdict), decided, recorded, factors)


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
    shown = next((judged for judged in explanation.entries if not judged.fits), explanation.entries[0])
    what = "fits" if shown.fits else "nearest that does not fit"
    parts.append(f"\nfactor by factor, {shown.entry.target} ({what}):")
    head = ("factor", "here", "entry", "verdict")
    told = [row for row in shown.factors if (row.here, row.entry) != ("-", "-")]
    rows = [(row.factor, row.here, row.entry, row.verdict) for row in told]
    parts.append(aligned([head, *rows], "  "))
    mends = [f"  {row.factor}: {row.mend}" for row in shown.factors if row.verdict == "differs" and row.mend]
    if mends:
        parts.append("\nto mend:\n" + "\n".join(mends))
    return "\n".join(parts)


def _entry_row(judged: Judged) -> tuple[str, str, str, str]:
    row = judged.entry
    why = "" if judged.fits else "; ".join(str(difference) for difference in judged.differences[:3])
    lane = f" (lane {row.lane})" if row.lane else ""
    return "fits" if judged.fits else "differs", f"{row.target}{lane}", bytes_text(row.pack_size), why
