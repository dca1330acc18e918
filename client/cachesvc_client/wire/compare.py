"""Compares the facts of two environments, or of two compiles, factor by factor of the table in ``factors``.

`compare` decides whether an entry fits. `differences` lists every factor that differs, and
`explanatory_differences` keeps those that can be the reason for a compile. `nearness` sorts entries that do
not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .errors import printable
from .factors import BY_NAME, DECIDERS, FACTORS, SCHEMA, Factor, FactorValue, Facts, Fingerprint
from .facts import MAX_TEXT

_MODEL = ("modules", "parameters", "triton_kernels", "python_operators", "operations")
"""Factors of which a difference means another model."""
_RANK = {name: rank for rank, name in enumerate(BY_NAME)}
"""Position of each factor in the table: the most important first."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Describes one factor that differs: both values as text, and how to fix the difference.

    ``mend`` is the name that the fix has on the wire; code reads `fix`. Every text is one printable line,
    because it goes to logs and terminals, and parts of it come from registries and clients.
    """

    factor: str
    mine: str
    theirs: str
    decides: bool
    mend: str

    def __post_init__(self) -> None:
        for name in ("factor", "mine", "theirs", "mend"):
            text = getattr(self, name)
            if not text.isprintable():
                object.__setattr__(self, name, printable(text))

    def __str__(self) -> str:
        return f"{self.factor}: here {self.mine}, entry {self.theirs}"

    @property
    def fix(self) -> str:
        """Returns how to fix the difference; an empty text if nothing can be done."""
        return self.mend

    @property
    def advice(self) -> str:
        """Returns the difference and its fix as one line."""
        return f"{self}: {self.fix}" if self.fix else str(self)


INERT = "usefulness"
"""Name that `inert_difference` uses in the place of a factor."""


WITHDRAWN = "quarantine"
"""Name that `withdrawn_difference` uses in the place of a factor."""


def inert_difference(revision: str, why: str = "") -> Difference:
    """Returns the difference of a revision that fits by every factor, but of which the hosts of this
    environment reported that they use nothing. No factor decides this, only reports do. ``why``: what
    differed on these hosts."""
    here = "inert on the hosts of this environment" + (f" ({why[:200]})" if why else "")
    return Difference(
        INERT,
        here,
        f"{revision[:19]}, not offered here until it is replaced",
        True,
        "build it as the service runs it: cachesvc warm --force; or have an admin lift the quarantine",
    )


def withdrawn_difference(revision: str, why: str = "") -> Difference:
    """Returns the difference of a revision that fits, but that an operator withholds from everybody. No
    factor decides this."""
    return Difference(
        WITHDRAWN,
        "withheld by an operator" + (f" ({why[:200]})" if why else ""),
        f"{revision[:19]}, not offered until it is released or replaced",
        True,
        "publish another: cachesvc warm --force; or have an admin release it",
    )


def revoked_difference(revision: str, why: str = "") -> Difference:
    """Returns the difference of a revision that fits, but whose signer was revoked. ``why``: the operator's
    reason."""
    return Difference(
        WITHDRAWN,
        f"its {signer_revoked(why)}",
        f"{revision[:19]}, not offered to anybody",
        True,
        "publish another, signed with another key: cachesvc warm --force",
    )


def ancestor_difference(revision: str, ancestor: str) -> Difference:
    """Returns the difference of a revision that fits, but one of whose ancestors was withdrawn. ``ancestor``:
    see `ancestor_withdrawn`."""
    return Difference(
        WITHDRAWN,
        ancestor_withdrawn(ancestor),
        f"{revision[:19]}, not offered to anybody",
        True,
        f"publish another: cachesvc warm --force; or have an admin release {ancestor[:19]}",
    )


def made_with(ancestor: str) -> str:
    """Returns the words for a revision that has an ancestor."""
    return f"made with revision {ancestor[:19]}"


def ancestor_withdrawn(text: str) -> str:
    """Returns the words for a withdrawn ancestor. ``text``: its digest, a space, and the operator's reason,
    perhaps an empty one."""
    ancestor, _, why = text.partition(" ")
    return f"{made_with(ancestor)}, which was withdrawn" + (f": {why[:200]}" if why else "")


def signer_revoked(why: str) -> str:
    """Returns the words for a signer that was revoked, with the operator's reason if there is one."""
    return "signer was revoked" + (f": {why[:200]}" if why else "")


@dataclass(frozen=True, slots=True)
class Compatible:
    """Says that an entry fits. ``recorded`` lists differences by which cachesvc does not decide."""

    recorded: tuple[Difference, ...] = ()

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Says that an entry does not fit. ``differences`` are in the order of the table: the most important
    first."""

    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return False

    @property
    def reason(self) -> str:
        """Returns the first difference as one line."""
        return str(self.differences[0])


def compare(mine: Fingerprint, theirs: Fingerprint, scopes: Iterable[str]) -> Compatible | Mismatch:
    """Decides whether code that was built under ``theirs`` fits the environment ``mine``.

    ``scopes``: what the entry holds (*gpu*, *host*); *any* is implied. The function is pure and raises
    nothing, whatever the values are. A factor that the entry does not carry decides nothing. A deciding
    factor of a newer schema, which this table does not know, is a doubt, and so the entry does not fit.
    """
    rows = differences(mine, theirs, scopes)
    deciding = tuple(difference for difference in rows if difference.decides)
    return Mismatch(deciding) if deciding else Compatible(rows)


def differences(mine: Facts, theirs: Facts, scopes: Iterable[str]) -> tuple[Difference, ...]:
    """Lists every known factor that differs: first the factors by which cachesvc decides, then those by which
    the compiler does, then the rest; each group in the order of the table, the most important first. The
    function is pure."""
    all_scopes = {"any", *scopes}
    rows = [
        _difference(factor, mine, theirs)
        for factor in FACTORS
        if factor.name in theirs
        and factor.scope in all_scopes
        and not _fits(factor, mine.get(factor.name), theirs[factor.name])
    ]
    schema = theirs.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        rows.append(Difference("schema", str(SCHEMA), _display(schema), True, "upgrade cachesvc-client"))
    return tuple(sorted(rows, key=lambda row: _importance(row.factor)))


def _importance(name: str) -> int:
    factor = BY_NAME.get(name)
    return DECIDERS.index(factor.decider) if factor else 0


def explanatory_differences(rows: Iterable[Difference]) -> tuple[Difference, ...]:
    """Keeps the differences by which cachesvc or the compiler decides: each can be the reason why code was
    not used. A library's version can be one only through the graph, so it comes last if that is the same."""
    kept = [row for row in rows if row.decides or BY_NAME[row.factor].decider == "compiler"]
    if not any(row.factor in _MODEL for row in kept):
        kept.sort(key=lambda row: row.factor == "libraries")
    return tuple(kept)


def nearness(rows: Sequence[Difference]) -> tuple[int, int, bool, int, int]:
    """Returns the key that sorts entries by their differences: fewest by which cachesvc decides; then the
    entry of whose these the first matters least; the same model before another; fewest in all; then the entry
    whose first difference matters least.

    A registry knows the differences by which cachesvc decides alone, and `explain` knows all: both name the
    same first one.
    """
    first = _RANK.get(rows[0].factor, -1) if rows else len(FACTORS)
    other_model = any(row.factor in _MODEL for row in rows)
    deciding = sum(row.decides for row in rows)
    return deciding, -first if deciding else 0, other_model, len(rows), -first


def _fits(factor: Factor, mine: FactorValue | None, theirs: FactorValue) -> bool:
    if mine is None:
        return factor.absent_mine == "accept"
    if isinstance(mine, list) and isinstance(theirs, list):
        consumer, builder = set(map(str, mine)), set(map(str, theirs))
        return {"covers": builder <= consumer, "within": consumer <= builder}.get(
            factor.rule, consumer == builder
        )
    if factor.rule == "at_least" and mine != theirs:
        builder_version, version = _version(theirs), _version(mine)
        return builder_version is not None and version is not None and version >= builder_version
    return mine == theirs


def _version(value: FactorValue) -> tuple[int, ...] | None:
    """Parses ``2.36`` as numbers; returns ``None`` for a text that is no dotted version, which is a doubt."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    parts = value.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else None


def _difference(factor: Factor, mine: Facts, theirs: Facts) -> Difference:
    consumer, builder = mine.get(factor.name), theirs[factor.name]
    decides = factor.decider == "cachesvc"
    if isinstance(consumer, list) and isinstance(builder, list):
        consumer_texts, builder_texts = set(map(str, consumer)), set(map(str, builder))
        extra = sorted(consumer_texts - builder_texts) if factor.rule != "covers" else []
        return Difference(
            factor.name,
            _display(extra),
            _display(sorted(builder_texts - consumer_texts)),
            decides,
            factor.fix,
        )
    return Difference(factor.name, _display(consumer), _display(builder), decides, factor.fix)


def _display(value: FactorValue | None) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, list):
        more = f", and {len(value) - 8} more" if len(value) > 8 else ""
        return (", ".join(map(str, value[:8]))[: 2 * MAX_TEXT] + more) or "none"
    return str(value)[:MAX_TEXT]
