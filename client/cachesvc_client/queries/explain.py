"""Owns ``explain``: why entries fit this environment or not, factor by factor, the most important first."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..config.settings import Config
from ..console.tables import aligned, bytes_text, shortened
from ..environment.detect import detect
from ..outcome.judge import KeyDifference
from ..wire.compare import Difference, differences, explanatory_differences, nearness
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError, InvalidRequest, NotFound
from ..wire.factors import BY_NAME, FACTORS, Factor, FactorValue, Facts
from ..wire.facts import bounded
from ..wire.names import Name, Tag
from ..wire.partitions import environment
from ..wire.requests.protocol import EntrySummary, EnvironmentUse, ResolveAnswer
from ..wire.requests.reports import STATES
from .offer import ask_offer
from .pull import registry_of

_LATER = "known once it compiles"
"""The verdict on factors of which nothing is known before a process compiles."""
Verdict = Literal["fits", "older", "withheld", "refused", "differs"]


@dataclass(frozen=True, slots=True)
class FactorRow:
    """Holds one factor of the comparison.

    ``verdict``: same (or covered, enough), differs, or why the factor was not compared; ``differs: …`` says
    who decides by the factor if cachesvc does not. ``mend``: how to fix a difference; the JSON output names
    it so.
    """

    factor: str
    here: str
    entry: str
    verdict: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class EntryVerdict:
    """Holds the comparison of one entry.

    ``verdict``: *fits* (a service here installs it), *older* (it fits, and a start installs a newer model's
    entry in its place), *withheld* (it fits, and the registry does not offer it here), *refused* (it fits,
    and this client does not accept it), or *differs*. ``differences``: why the
    entry is not installed; empty if it fits. ``recorded``: the differences by which only the compiler
    decides, or nobody.
    """

    entry: EntrySummary
    fits: bool
    verdict: Verdict
    differences: tuple[Difference, ...]
    recorded: tuple[Difference, ...]
    factors: tuple[FactorRow, ...]

    @property
    def reasons(self) -> tuple[Difference, ...]:
        """Return the differences that can be why the entry's files are not used, the most important first."""
        return explanatory_differences((*self.differences, *self.recorded))

    @property
    def known_factors(self) -> list[FactorRow]:
        """Return the factors that either side knows; those that differ come first."""
        rows = [row for row in self.factors if (row.here, row.entry) != ("-", "-")]
        return sorted(rows, key=lambda row: not row.verdict.startswith("differs"))


@dataclass(frozen=True, slots=True)
class Explanation:
    """Holds the comparison of all entries under a name.

    ``entries``: first the fitting ones, then the nearest. ``components``: the components in which PyTorch's
    own keys differ, after an inert start. ``traced``: targets of fitting entries whose hits trace.
    """

    name: str
    here: Facts
    entries: tuple[EntryVerdict, ...]
    components: tuple[KeyDifference, ...] = ()
    traced: tuple[str, ...] = ()

    @property
    def fitting(self) -> int:
        """Return how many entries fit."""
        return sum(entry.fits for entry in self.entries)

    @property
    def shown(self) -> EntryVerdict | None:
        """Return the entry that is shown factor by factor: the first that fits, if the compiler would not use
        it; else the nearest that does not fit; else the first."""
        if not self.entries:
            return None
        first = self.entries[0]
        unfit = next((row for row in self.entries if not row.fits and row.verdict != "older"), first)
        return first if first.fits and first.reasons else unfit


def explain(
    config: Config,
    name: Name,
    *,
    fallback: tuple[Tag, ...] = (),
    target: str | None = None,
    here: Facts | None = None,
) -> Explanation:
    """Compare every entry under ``name`` with ``here``: by default with this environment.

    ``target``: one target, or a beginning of it up to a slash (``bert`` is ``bert/float32/default`` too).
    The workload factors of an entry are in its manifest: they are compared where the signer is trusted and
    ``here`` holds workload factors (a report's ``facts``). Raises ``NotFound`` (no such name, or no such
    target: then the message names the existing ones), ``Unavailable`` and what else ``Remote`` raises.
    """
    fingerprint_here = detect() if here is None else None
    here = fingerprint_here or here or {}
    with registry_of(config) as remote:
        offer = ask_offer(remote, config, name, fallback, environment_facts(here), fingerprint_here)
        rows = [row for row in remote.entries(offer.name) if row.lane is None or row.lane == config.lane]
    if target is not None:
        rows = _of_target(rows, target, offer.name)
    kept_out = not_installed(offer.answer, rows, offer.refused)
    explained = judge(str(offer.name), here, rows, offer.facts, kept_out)
    traced = [one.entry for one in explained.entries if one.fits and one.entry.entry in offer.traced]
    return replace(explained, traced=tuple(sorted({str(row.target) for row in traced})))


def read_facts(path: Path) -> Facts:
    """Read factors by name from a JSON file: the output of ``doctor --json`` or ``explain --json``, a report,
    or the object of factors itself. Raises ``InvalidRequest`` with the place of the mistake."""
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
    name: str,
    here: Facts,
    rows: Sequence[EntrySummary],
    asked: Mapping[Digest, Facts] | None = None,
    kept_out: Mapping[Digest, tuple[Verdict, Difference]] | None = None,
) -> Explanation:
    """Compare each entry with ``here``, without any I/O. ``asked``: by entry, the workload factors of its
    compiles. ``kept_out``: what `not_installed` returns."""
    verdicts = [
        _judge(here, row, (asked or {}).get(row.entry, {}), (kept_out or {}).get(row.entry)) for row in rows
    ]
    # What is kept out though it fits comes first, as in the registry's answer.
    verdicts.sort(
        key=lambda one: (
            not one.fits,
            one.verdict == "differs",
            *nearness(one.reasons),
            -one.entry.published,
        )
    )
    return Explanation(name, here, tuple(verdicts))


def not_installed(
    answer: ResolveAnswer, rows: Sequence[EntrySummary], refused: Mapping[Digest, CacheSvcError]
) -> dict[Digest, tuple[Verdict, Difference]]:
    """Return which entries a service here does not install, though no factor differs, and why.

    First the registry's answer decides, and then whether this client accepts what the registry offers.
    """
    reasons: dict[Digest, tuple[Verdict, Difference]] = {
        row.entry: ("withheld" if row.withheld else "differs", row.differences[0]) for row in answer.rejected
    }
    for entry, error in refused.items():
        reasons[entry] = ("refused", Difference("trust", error.message, "as published", True, error.hint))
    offered = {revision.entry for revision in answer.revisions}
    why = "not offered: it has expired, or another entry takes its place"
    absent: tuple[Verdict, str] = ("withheld", why)
    if answer.older:
        found = "compiles find this one by their keys"
        absent = ("older", f"a newer model's entry takes its place ({found}), or it has expired")
    for row in rows:
        if row.entry not in offered and row.entry not in reasons:
            reasons[row.entry] = (absent[0], Difference("offer", absent[1], "published", True, ""))
    return reasons


def environment_facts(facts: Facts) -> Facts:
    """Return the facts that say where something runs, without those of a workload."""
    return {
        name: value
        for name, value in facts.items()
        if name not in BY_NAME or BY_NAME[name].group == "environment"
    }


def _of_target(rows: Sequence[EntrySummary], target: str, name: Name) -> list[EntrySummary]:
    matches = [row for row in rows if row.target == target or row.target.startswith(target.rstrip("/") + "/")]
    if not matches:
        targets = sorted({row.target for row in rows})
        raise NotFound(f"{name} has no target {target!r}", f"it has: {', '.join(targets[:10])}")
    return matches


def _judge(
    here: Facts, row: EntrySummary, asked: Facts, kept_out: tuple[Verdict, Difference] | None
) -> EntryVerdict:
    theirs: Facts = {**asked, **row.fingerprint}
    all_differences = differences(here, theirs, row.scopes)
    decided = tuple(one for one in all_differences if one.decides)
    verdict: Verdict = "differs" if decided else "fits"
    if not decided and kept_out is not None:
        verdict, decided = kept_out[0], (kept_out[1],)
    recorded = tuple(one for one in all_differences if not one.decides)
    differing = {one.factor: one for one in all_differences}
    factors = [_row(factor, here, theirs, row.scopes, differing.get(factor.name)) for factor in FACTORS]
    factors += [_unknown(name, here, theirs) for name in sorted(theirs) if name not in (*BY_NAME, "schema")]
    return EntryVerdict(row, not decided, verdict, decided, recorded, tuple(factors))


def _row(
    factor: Factor, here: Facts, theirs: Facts, scopes: Sequence[str], difference: Difference | None
) -> FactorRow:
    mine, entry = _text(here.get(factor.name)), _text(theirs.get(factor.name))
    if difference is not None:
        verdict = {"compiler": "differs: the compiler decides", "nobody": "differs, decides nothing"}.get(
            factor.decider, "differs"
        )
        return FactorRow(factor.name, difference.mine, difference.theirs, verdict, difference.fix)
    if factor.scope not in ("any", *scopes):
        return FactorRow(factor.name, mine, entry, f"not compared: the entry holds no {factor.scope} code")
    if factor.name not in theirs:
        return FactorRow(factor.name, mine, entry, "not compared: the entry does not say")
    if factor.name not in here:
        unknown = "accepted: unknown here" if factor.group == "environment" else _LATER
        return FactorRow(factor.name, mine, entry, unknown)
    verdict = {"covers": "covered", "at_least": "enough", "within": "among the entry's"}.get(
        factor.rule, "same"
    )
    return FactorRow(factor.name, mine, entry, verdict)


def _unknown(name: str, here: Facts, theirs: Facts) -> FactorRow:
    verdict = "not compared: this client does not know it"
    return FactorRow(name[:60], _text(here.get(name)), _text(theirs[name]), verdict)


def _text(value: FactorValue | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        joined = ", ".join(value)
        return joined or "none" if len(value) <= 3 and len(joined) <= 80 else f"{len(value)} of them"
    return str(value)[:200]


def render(explanation: Explanation, width: int = sys.maxsize) -> str:
    """Return the text for a terminal of ``width`` columns: the entries, and then one of them
    (`Explanation.shown`) factor by factor."""
    total = len(explanation.entries)
    parts = [f"{explanation.name}: {explanation.fitting} of {total} entries fit here"]
    parts.append(aligned((_entry_row(judged) for judged in explanation.entries), "  "))
    shown = explanation.shown
    if shown is None:
        return parts[0]
    if explanation.traced:
        parts.append(
            f"\na start will be a hit, but traced (nothing was recorded): {', '.join(explanation.traced)}"
        )
    uses = [
        _use_row(explanation.here, judged.entry, use)
        for judged in explanation.entries
        for use in judged.entry.usefulness
    ]
    if uses:
        parts.append("\noutcomes of starts:\n" + aligned(uses, "  "))
    what = "nearest that does not fit" if shown.verdict == "differs" else shown.verdict
    parts.append(f"\nfactor by factor, {shown.entry.target} ({what}):")
    head = ("factor", "here", "entry", "verdict")
    now = [row for row in shown.known_factors if row.verdict != _LATER]
    rows = [(row.factor, row.here, row.entry, row.verdict) for row in now]
    factors, cut = shortened([head, *rows], width - 2)
    parts.append(aligned(factors, "  "))
    later = [f"{row.factor} {row.entry}" for row in shown.known_factors if row.verdict == _LATER]
    if later:
        text = f"{_LATER}; the entry has {'; '.join(later)}"
        parts.append(textwrap.fill(text, min(width, 110), initial_indent="  ", subsequent_indent="    "))
    if cut:
        parts.append("  values that end with … are cut: --json shows them whole")
    fixes = [f"  {one.factor}: {one.fix}" for one in (*shown.differences, *shown.recorded) if one.fix]
    if fixes:
        parts.append("\nto fix:\n" + "\n".join(fixes))
    if explanation.components:
        keys = [(one.component, one.here, one.entry) for one in explanation.components]
        parts.append("\nin PyTorch's own keys:\n" + aligned([("component", "here", "entry"), *keys], "  "))
    return "\n".join(parts)


def _use_row(here: Facts, row: EntrySummary, use: EnvironmentUse) -> tuple[str, str, str]:
    where = "here" if is_use_here(here, row, use) else _elsewhere(use)
    counts = [f"{getattr(use, state)} {state}" for state in STATES if getattr(use, state)]
    text = f"{', '.join(counts)}; {use.saved:.1f} s saved, {use.spent:.1f} s spent compiling"
    if use.quarantined is not None:
        text += "; not offered there"
    elif use.inert_hosts:
        text += f"; inert on {use.inert_hosts} host{'s' if use.inert_hosts > 1 else ''} since the last hit"
    return str(row.target), where, text + (f" ({use.why})" if use.why else "")


def is_use_here(here: Facts, row: EntrySummary, use: EnvironmentUse) -> bool:
    """Return whether a use of an entry was in the environment ``here``."""
    try:
        return use.environment == environment(here, row.fingerprint, row.scopes)
    except ValueError:  # halves of characters have no digest, and no environment has them
        return False


def _elsewhere(use: EnvironmentUse) -> str:
    facts = [use.facts[name] for name in ("gpu", "cpu_isa", "torch") if name in use.facts]
    return ", ".join(facts[:2]) or use.environment[:19]


def _entry_row(judged: EntryVerdict) -> tuple[str, str, str, str]:
    row = judged.entry
    why = "; ".join(map(str, judged.reasons[:3]))
    lane = f" (lane {row.lane})" if row.lane else ""
    return judged.verdict, f"{row.target}{lane}", bytes_text(row.pack_size), why
