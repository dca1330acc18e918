"""Compares the facts of two environments, or of two compiles, factor by factor of the table in ``factors``.

`compare` decides whether an entry fits. `differences` lists every factor that differs, and `explaining` keeps
those that can be the reason for a compile. `nearness` sorts entries that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .factors import BY_NAME, DECIDERS, FACTORS, SCHEMA, Factor, FactorValue, Facts, Fingerprint
from .facts import MAX_TEXT

_MODEL = ("parameters", "triton_kernels", "python_operators", "operations")
_RANK = {name: rank for rank, name in enumerate(BY_NAME)}


@dataclass(frozen=True, slots=True)
class Difference:
    """One factor that differs: both values as text, and what to do about the difference.

    ``mend`` is the name that the fix has on the wire; code reads `fix`.
    """

    factor: str
    mine: str
    theirs: str
    decides: bool
    mend: str

    def __str__(self) -> str:
        return f"{self.factor}: here {self.mine}, entry {self.theirs}"

    @property
    def fix(self) -> str:
        """What to do about the difference; empty if nothing can be done."""
        return self.mend

    @property
    def advice(self) -> str:
        """The difference and its fix, as one line."""
        return f"{self}: {self.fix}" if self.fix else str(self)


INERT = "usefulness"
"""Stands in the place of a factor's name in what :func:`inert_here` makes."""


WITHDRAWN = "quarantine"
"""Stands in the place of a factor's name in what :func:`withdrawn` makes."""


def inert_here(revision: str, why: str = "") -> Difference:
    """Stands for a revision that fits by every factor, and of which the hosts of this environment told the
    registry that nothing of it is used. It is no factor: only reports decide it. ``why``: what differed."""
    here = "inert on the hosts of this environment" + (f" ({why[:200]})" if why else "")
    return Difference(
        INERT,
        here,
        f"{revision[:19]}, not offered here until it is replaced",
        True,
        "build it as the service runs it: cachesvc warm --force; or have an admin lift the quarantine",
    )


def withdrawn(revision: str, why: str = "") -> Difference:
    """Stands for a revision that fits, and that an operator has offered to nobody. It is no factor."""
    return Difference(
        WITHDRAWN,
        "withheld by an operator" + (f" ({why[:200]})" if why else ""),
        f"{revision[:19]}, not offered until it is released or replaced",
        True,
        "publish another: cachesvc warm --force; or have an admin release it",
    )


@dataclass(frozen=True, slots=True)
class Compatible:
    """``recorded`` lists differences by which cachesvc does not decide."""

    recorded: tuple[Difference, ...] = ()

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Mismatch:
    """``differences`` in the table's order: the most important first."""

    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return False

    @property
    def reason(self) -> str:
        """One line: the first difference."""
        return str(self.differences[0])


def compare(mine: Fingerprint, theirs: Fingerprint, scopes: Iterable[str]) -> Compatible | Mismatch:
    """Whether code built under ``theirs`` fits the environment ``mine``.

    ``scopes``: what the entry holds (*gpu*, *host*); *any* is implied. Pure; raises nothing, whatever the
    values are. A factor that the entry does not carry says nothing; one of a newer schema that decides,
    and that this table does not know, is a doubt, and so a refusal.
    """
    found = differences(mine, theirs, scopes)
    decided = tuple(difference for difference in found if difference.decides)
    return Mismatch(decided) if decided else Compatible(found)


def differences(mine: Facts, theirs: Facts, scopes: Iterable[str]) -> tuple[Difference, ...]:
    """Every known factor that differs: those by which cachesvc decides first, then those by which the
    compiler does, then the rest; each in the table's order, so the most important first. Pure."""
    counted = {"any", *scopes}
    found = [
        _difference(factor, mine, theirs)
        for factor in FACTORS
        if factor.name in theirs
        and factor.scope in counted
        and not _fits(factor, mine.get(factor.name), theirs[factor.name])
    ]
    schema = theirs.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        found.append(Difference("schema", str(SCHEMA), _shown(schema), True, "upgrade cachesvc-client"))
    return tuple(sorted(found, key=lambda one: _importance(one.factor)))


def _importance(name: str) -> int:
    factor = BY_NAME.get(name)
    return DECIDERS.index(factor.decider) if factor else 0


def explaining(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Those of :func:`differences` by which somebody decides: each can be why code was not used."""
    return tuple(one for one in found if one.decides or BY_NAME[one.factor].decider == "compiler")


def nearness(found: Sequence[Difference]) -> tuple[int, bool, int, int]:
    """Sorts entries by their differences: fewest by which cachesvc decides; the same model before another;
    fewest of all; of these, the one whose first difference matters least."""
    first = _RANK.get(found[0].factor, -1) if found else len(FACTORS)
    other_model = any(one.factor in _MODEL for one in found)
    return sum(one.decides for one in found), other_model, len(found), -first


def _fits(factor: Factor, mine: FactorValue | None, theirs: FactorValue) -> bool:
    if mine is None:
        return factor.absent_mine == "accept"
    if isinstance(mine, list) and isinstance(theirs, list):
        here, there = set(map(str, mine)), set(map(str, theirs))
        return {"covers": there <= here, "within": here <= there}.get(factor.rule, here == there)
    if factor.rule == "at_least" and mine != theirs:
        needed, have = _version(theirs), _version(mine)
        return needed is not None and have is not None and have >= needed
    return mine == theirs


def _version(value: FactorValue) -> tuple[int, ...] | None:
    """``2.36`` as numbers; ``None`` for what is no dotted version: a doubt."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    parts = value.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else None


def _difference(factor: Factor, mine: Facts, theirs: Facts) -> Difference:
    left, right = mine.get(factor.name), theirs[factor.name]
    decides = factor.decider == "cachesvc"
    if isinstance(left, list) and isinstance(right, list):
        here, there = set(map(str, left)), set(map(str, right))
        extra = sorted(here - there) if factor.rule != "covers" else []
        return Difference(factor.name, _shown(extra), _shown(sorted(there - here)), decides, factor.fix)
    return Difference(factor.name, _shown(left), _shown(right), decides, factor.fix)


def _shown(value: FactorValue | None) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, list):
        more = f", and {len(value) - 8} more" if len(value) > 8 else ""
        return (", ".join(map(str, value[:8]))[: 2 * MAX_TEXT] + more) or "none"
    return str(value)[:MAX_TEXT]
