"""The factor table: the one place that says what of an environment decides.

A fingerprint is a dict from factor name to value. ``FACTORS`` says for each which rule
compares it, for which content it counts (*scope*), since which schema version it exists,
what its absence means and why it is there. Client and server use this one table;
``detect`` fills it, :func:`compare` decides, ``docs`` and ``explain`` print it.

A new factor is one row here and one golden test. An entry or a client that does not know
a factor (older) or knows more (newer) is handled by ``absent``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Union

from .codec import canonical
from .digest import Digest

FactorValue = Union[str, int, bool, list[str]]
Fingerprint = dict[str, FactorValue]
Scope = Literal["any", "gpu", "host"]
Rule = Literal["equal", "covers", "at_least", "recorded"]

SCHEMA = 1
"""The newest ``since`` in the table. Fingerprints carry it as ``schema``."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One row.

    ``rule``: *equal* (strict), *covers* (strict: the consumer's set holds the builder's),
    *at_least* (strict: the consumer's dotted version is not lower), *recorded* (never decides).
    ``scope``: *any* always counts; *gpu* if the entry holds GPU code; *host* if it holds host code.
    ``absent_mine``: what it means if the consumer cannot tell: *refuse* (doubt is a miss) or
    *accept* (the entry's value is taken).
    """

    name: str
    rule: Rule
    scope: Scope
    since: int
    absent_mine: Literal["refuse", "accept"]
    why: str
    mend: str


FACTORS: tuple[Factor, ...] = (
    Factor(
        "torch",
        "equal",
        "any",
        1,
        "refuse",
        "every PyTorch cache key holds the version and a hash of torch's sources",
        "install the torch that the entry was built with, or warm with yours",
    ),
    Factor(
        "triton",
        "equal",
        "any",
        1,
        "accept",
        "the Triton key is part of every kernel's key; without Triton there are no such kernels",
        "install the triton that the entry was built with, or warm with yours",
    ),
    Factor(
        "python_abi",
        "equal",
        "any",
        1,
        "refuse",
        "guards, code objects and extension modules belong to one interpreter ABI",
        "run the Python version that the entry was built with, or warm with yours",
    ),
    Factor(
        "platform", "equal", "any", 1, "refuse", "operating system and architecture", "warm on this platform"
    ),
    Factor(
        "cuda",
        "equal",
        "gpu",
        1,
        "refuse",
        "the CUDA (or ROCm) version of the torch build is in the FX key",
        "install the torch build for the same CUDA version",
    ),
    Factor("gpu", "equal", "gpu", 1, "refuse", "the device name is in the FX key", "warm on this GPU"),
    Factor(
        "compute_capability",
        "equal",
        "gpu",
        1,
        "refuse",
        "machine code for one capability crashes or is refused on another",
        "warm on this GPU",
    ),
    Factor(
        "cpu_isa",
        "equal",
        "host",
        1,
        "refuse",
        "not in PyTorch's keys, and a cross-ISA hit computes garbage",
        "warm under the same ATEN_CPU_CAPABILITY and CPU generation",
    ),
    Factor(
        "cpu_flags",
        "covers",
        "host",
        1,
        "refuse",
        "kernels are built with -march=native: code for flags that this CPU lacks dies with SIGILL",
        "warm on the oldest CPU generation of the fleet",
    ),
    Factor(
        "cxx",
        "equal",
        "host",
        1,
        "accept",
        "the C++ compiler is part of what was built; an image without one takes the builder's",
        "use the builder's compiler version, or none",
    ),
    Factor(
        "libc",
        "at_least",
        "any",
        1,
        "refuse",
        "shared objects need the C library that they were linked with, or a newer one; entries with Triton "
        "kernels hold them too (the driver's helper)",
        "warm on the oldest distribution of the fleet",
    ),
    Factor(
        "threads",
        "equal",
        "host",
        1,
        "accept",
        "the number of threads is in the key of CPU graphs since 2.13; unknown before torch is loaded",
        "set OMP_NUM_THREADS to the builder's value in both places",
    ),
    Factor("driver", "recorded", "gpu", 1, "accept", "the NVIDIA driver; decides nothing by itself", ""),
    Factor("gpu_count", "recorded", "gpu", 1, "accept", "visible devices", ""),
    Factor("mig", "recorded", "gpu", 1, "accept", "the MIG profile; its name is part of `gpu`", ""),
    Factor("cpu_model", "recorded", "host", 1, "accept", "for people who read `explain`", ""),
    Factor(
        "settings",
        "recorded",
        "any",
        1,
        "accept",
        "variables that change PyTorch's keys, as NAME=value",
        "set them alike in build and service",
    ),
)

BY_NAME: Mapping[str, Factor] = {factor.name: factor for factor in FACTORS}


@dataclass(frozen=True, slots=True)
class Difference:
    """One factor that differs: both values as text, and what to do."""

    factor: str
    mine: str
    theirs: str
    decides: bool
    mend: str

    def __str__(self) -> str:
        return f"{self.factor}: here {self.mine}, entry {self.theirs}"


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
    """``recorded`` lists differences that decide nothing."""

    recorded: tuple[Difference, ...] = ()

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Incompatible:
    """``differences`` in the table's order: the most important first."""

    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return False

    @property
    def reason(self) -> str:
        """One line: the first difference."""
        return str(self.differences[0])


def compare(mine: Fingerprint, theirs: Fingerprint, scopes: Iterable[str]) -> Compatible | Incompatible:
    """Whether code built under ``theirs`` fits the environment ``mine``.

    ``scopes``: what the entry holds (*gpu*, *host*); *any* is implied. Pure. A factor that the
    entry does not carry says nothing; one of a newer schema that decides, and that this table does
    not know, is a doubt, and so a refusal.
    """
    counted = {"any", *scopes}
    decided: list[Difference] = []
    recorded: list[Difference] = []
    for factor in FACTORS:
        if factor.name not in theirs or factor.scope not in counted:
            continue
        if _fits(factor, mine.get(factor.name), theirs[factor.name]):
            continue
        difference = _difference(factor, mine, theirs)
        (recorded if factor.rule == "recorded" else decided).append(difference)
    schema = theirs.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        decided.append(Difference("schema", str(SCHEMA), str(schema), True, "upgrade cachesvc-client"))
    return Incompatible(tuple(decided)) if decided else Compatible(tuple(recorded))


def partition(fingerprint: Fingerprint, scopes: Iterable[str]) -> Digest:
    """The digest of the deciding factors: entries of different partitions never replace each other."""
    counted = {"any", *scopes}
    deciding = {
        factor.name: fingerprint[factor.name]
        for factor in FACTORS
        if factor.rule != "recorded" and factor.scope in counted and factor.name in fingerprint
    }
    return Digest.of(canonical({"scopes": sorted(counted), "factors": deciding}))


def _fits(factor: Factor, mine: FactorValue | None, theirs: FactorValue) -> bool:
    if mine is None:
        return factor.absent_mine == "accept"
    if factor.rule == "covers" and isinstance(mine, list) and isinstance(theirs, list):
        return set(theirs) <= set(mine)
    if factor.rule == "at_least":
        return _version(mine) >= _version(theirs)
    if isinstance(mine, list) and isinstance(theirs, list):
        return sorted(mine) == sorted(theirs)
    return mine == theirs


def _version(value: FactorValue) -> tuple[int, ...]:
    return tuple(int(part) for part in str(value).split(".") if part.isdigit())


def _difference(factor: Factor, mine: Fingerprint, theirs: Fingerprint) -> Difference:
    left, right = mine.get(factor.name), theirs[factor.name]
    if isinstance(left, list) and isinstance(right, list):
        missing = sorted(set(right) - set(left))
        extra = sorted(set(left) - set(right)) if factor.rule != "covers" else []
        return Difference(factor.name, _shown(extra), _shown(missing), factor.rule != "recorded", factor.mend)
    return Difference(factor.name, _shown(left), _shown(right), factor.rule != "recorded", factor.mend)


def _shown(value: FactorValue | None) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, list):
        return ", ".join(value[:8]) + (f", and {len(value) - 8} more" if len(value) > 8 else "") or "none"
    return str(value)[:200]
