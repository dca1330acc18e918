"""Why entries fit this environment or not, factor by factor, the most important first."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..config import Config
from ..detect import detect
from ..usefulness import KeyDifference
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError, InvalidRequest, NotFound
from ..wire.factors import (
    BY_NAME,
    FACTORS,
    Difference,
    Factor,
    FactorValue,
    Facts,
    bounded,
    differences,
    environment,
    explaining,
    inert_here,
    nearness,
)
from ..wire.names import Name, Tag
from ..wire.protocol import STATES, EntrySummary, EnvironmentUse, ResolveAnswer, ResolveRequest
from .tables import aligned, bytes_text
from .transfer import registry_of


@dataclass(frozen=True, slots=True)
class FactorRow:
    """One line of the comparison. ``verdict``: same (or covered, enough), differs, or why it was not
    compared; ``differs: …`` says who decides by it if cachesvc does not."""

    factor: str
    here: str
    entry: str
    verdict: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """One entry. ``differences`` by which cachesvc decides; empty if it fits. ``recorded``: those by which
    the compiler decides, or nobody."""

    entry: EntrySummary
    fits: bool
    differences: tuple[Difference, ...]
    recorded: tuple[Difference, ...]
    factors: tuple[FactorRow, ...]

    @property
    def reasons(self) -> tuple[Difference, ...]:
        """What can be why its files are not used, the most important first."""
        return explaining((*self.differences, *self.recorded))


@dataclass(frozen=True, slots=True)
class Explanation:
    """``entries``: those that fit first, then nearest first. ``components``: of an inert start, what
    PyTorch's own keys differ in."""

    name: str
    here: Facts
    entries: tuple[Judged, ...]
    components: tuple[KeyDifference, ...] = ()

    @property
    def fitting(self) -> int:
        """How many fit."""
        return sum(judged.fits for judged in self.entries)


def explain(
    config: Config,
    name: Name,
    *,
    fallback: tuple[Tag, ...] = (),
    target: str | None = None,
    here: Facts | None = None,
) -> Explanation:
    """Compares every entry under ``name`` with ``here``: by default with this environment.

    ``target``: one target, or a beginning of it up to a slash (``bert`` is ``bert/float32/default`` too).
    What entries were asked for is in their manifests: it is compared where the signer is trusted and
    ``here`` holds workload factors (a report's ``facts``). Raises ``NotFound`` (no such name, or no such
    target: the message has those that there are), ``Unavailable`` and what else ``Remote`` raises.
    """
    here = detect() if here is None else here
    tags = name.tags(fallback)
    fingerprint = {key: value for key, value in here.items() if _of_the_environment(key)}
    with registry_of(config) as remote:
        answer = remote.resolve(
            ResolveRequest(name.namespace, name.name, fingerprint, tags=tags, lane=config.lane)
        )
        chosen = Name(name.namespace, name.name, answer.tag or name.tag)
        rows = [row for row in remote.entries(chosen) if row.lane is None or row.lane == config.lane]
    if target is not None:
        rows = _of_target(rows, target, chosen)
    return judge(str(chosen), here, rows, _asked(answer, chosen, config))


def read_facts(path: Path) -> Facts:
    """Factors by name from a JSON file: what ``doctor --json`` or ``explain --json`` printed, a report, or
    the object itself. Raises ``InvalidRequest`` with the place of the mistake."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{path}: not JSON: {str(error)[:200]}", "give what doctor --json prints"
        ) from None
    if isinstance(value, dict):
        value = next((value[key] for key in ("fingerprint", "facts", "here") if key in value), value)
    facts = bounded(value) if isinstance(value, dict) else {}
    if not set(facts) & set(BY_NAME):
        raise InvalidRequest(f"{path}: no factor is named in it", "give what doctor --json prints")
    return facts


def judge(
    name: str, here: Facts, rows: Sequence[EntrySummary], asked: Mapping[Digest, Facts] | None = None
) -> Explanation:
    """Pure: each entry against ``here``. ``asked``: by entry, what its compiles were asked for."""
    judged = [_judge(here, row, (asked or {}).get(row.entry, {})) for row in rows]
    judged.sort(key=lambda one: (not one.fits, *nearness(one.reasons), -one.entry.published))
    return Explanation(name, here, tuple(judged))


def _withheld(here: Facts, row: EntrySummary) -> tuple[Difference, ...]:
    """What fits by every factor and is not offered here, as services found it useless."""
    mine = environment(here, row.fingerprint, row.scopes)
    uses = (use for use in row.usefulness if use.environment == mine and use.quarantined is not None)
    return tuple(inert_here(row.revision, use.why) for use in uses)


def _of_the_environment(name: str) -> bool:
    factor = BY_NAME.get(name)
    return factor is None or factor.group == "environment"


def _of_target(rows: Sequence[EntrySummary], target: str, name: Name) -> list[EntrySummary]:
    found = [row for row in rows if row.target == target or row.target.startswith(target.rstrip("/") + "/")]
    if not found:
        there = sorted({row.target for row in rows})
        raise NotFound(f"{name} has no target {target!r}", f"it has: {', '.join(there[:10])}")
    return found


def _asked(answer: ResolveAnswer, name: Name, config: Config) -> dict[Digest, Facts]:
    from ..bundle.check import Wanted, check_envelope

    wanted = Wanted(name.namespace, name.name, (name.tag,), config.lane)
    found: dict[Digest, Facts] = {}
    for revision in answer.revisions:
        with suppress(
            CacheSvcError
        ):  # not trusted here: it is not read, and its environment is compared alone
            verified = check_envelope(
                revision.envelope.encode(), trusted=config.trusted_keys, wanted=wanted, now=time.time()
            )
            found[revision.entry] = verified.manifest.facts
    return found


def _judge(here: Facts, row: EntrySummary, asked: Facts) -> Judged:
    theirs: Facts = {**asked, **row.fingerprint}
    found = differences(here, theirs, row.scopes)
    decided = tuple(one for one in found if one.decides) or _withheld(here, row)
    recorded = tuple(one for one in found if not one.decides)
    differing = {one.factor: one for one in found}
    factors = [_row(factor, here, theirs, row.scopes, differing.get(factor.name)) for factor in FACTORS]
    factors += [_unknown(name, here, theirs) for name in sorted(theirs) if name not in (*BY_NAME, "schema")]
    return Judged(row, not decided, decided, recorded, tuple(factors))


def _row(
    factor: Factor, here: Facts, theirs: Facts, scopes: Sequence[str], difference: Difference | None
) -> FactorRow:
    mine, entry = _text(here.get(factor.name)), _text(theirs.get(factor.name))
    if difference is not None:
        verdict = {"compiler": "differs: the compiler decides", "nobody": "differs, decides nothing"}.get(
            factor.decider, "differs"
        )
        return FactorRow(factor.name, difference.mine, difference.theirs, verdict, difference.mend)
    if factor.scope not in ("any", *scopes):
        return FactorRow(factor.name, mine, entry, f"not compared: the entry holds no {factor.scope} code")
    if factor.name not in theirs:
        return FactorRow(factor.name, mine, entry, "not compared: the entry does not say")
    if factor.name not in here:
        unknown = "accepted: unknown here" if factor.group == "environment" else "known once it compiles"
        return FactorRow(factor.name, mine, entry, unknown)
    verdict = {"covers": "covered", "at_least": "enough", "within": "among the entry's"}.get(
        factor.rule, "same"
    )
    return FactorRow(factor.name, mine, entry, verdict)


def _unknown(name: str, here: Facts, theirs: Facts) -> FactorRow:
    told = "not compared: this client does not know it"
    return FactorRow(name[:60], _text(here.get(name)), _text(theirs[name]), told)


def _text(value: FactorValue | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        joined = ", ".join(value)
        return joined or "none" if len(value) <= 3 and len(joined) <= 80 else f"{len(value)} of them"
    return str(value)[:200]


def render(explanation: Explanation) -> str:
    """For a terminal: the entries, then factor by factor the one to mend: the first that fits, if the
    compiler would pass it over; else the nearest that does not fit; else the first."""
    total = len(explanation.entries)
    parts = [f"{explanation.name}: {explanation.fitting} of {total} entries fit here"]
    parts.append(aligned((_entry_row(judged) for judged in explanation.entries), "  "))
    if not explanation.entries:
        return parts[0]
    uses = [
        _use_row(explanation.here, judged.entry, use)
        for judged in explanation.entries
        for use in judged.entry.usefulness
    ]
    if uses:
        parts.append("\nwhat starts came to:\n" + aligned(uses, "  "))
    first = explanation.entries[0]
    unfit = next((judged for judged in explanation.entries if not judged.fits), first)
    shown = first if first.fits and first.reasons else unfit
    what = "fits" if shown.fits else "nearest that does not fit"
    parts.append(f"\nfactor by factor, {shown.entry.target} ({what}):")
    head = ("factor", "here", "entry", "verdict")
    told = [row for row in shown.factors if (row.here, row.entry) != ("-", "-")]
    told.sort(key=lambda row: not row.verdict.startswith("differs"))
    rows = [(row.factor, row.here, row.entry, row.verdict) for row in told]
    parts.append(aligned([head, *rows], "  "))
    told_first = (*shown.differences, *shown.recorded)
    mends = [f"  {one.factor}: {one.mend}" for one in told_first if one.mend]
    if mends:
        parts.append("\nto mend:\n" + "\n".join(mends))
    if explanation.components:
        keys = [(one.component, one.here, one.entry) for one in explanation.components]
        parts.append("\nin PyTorch's own keys:\n" + aligned([("component", "here", "entry"), *keys], "  "))
    return "\n".join(parts)


def _use_row(here: Facts, row: EntrySummary, use: EnvironmentUse) -> tuple[str, str, str]:
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
    why = "; ".join(map(str, judged.reasons[:3]))
    lane = f" (lane {row.lane})" if row.lane else ""
    return "fits" if judged.fits else "differs", f"{row.target}{lane}", bytes_text(row.pack_size), why
