"""The factor table: the one place that says what of an environment and of a workload counts.

Facts are a dict from factor name to value: a fingerprint for the environment (``detect`` fills it), and
what a compile was asked for (``graphs.request`` fills it). ``FACTORS`` says for each which rule compares it,
who decides by it, for which content it counts (*scope*), since which schema version it exists, what its
absence means and why it is there. Client and server use this one table; :func:`compare` decides,
:func:`differences` explains, and ``docs/keys.md`` is printed from it.

A new factor is one row here and one golden test. An entry or a client that does not know
a factor (older) or knows more (newer) is handled by ``absent``. The order is that of importance: what
changes other rows with it comes before them, so that the first difference is the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from .codec import canonical
from .digest import Digest

FactorValue = Union[str, int, bool, list[str]]
Facts = dict[str, FactorValue]
Fingerprint = Facts
"""The facts of an environment."""
Scope = Literal["any", "gpu", "host"]
Rule = Literal["equal", "covers", "within", "at_least"]
Decider = Literal["cachesvc", "compiler", "nobody"]
Group = Literal["environment", "workload"]

SCHEMA = 1
"""The newest ``since`` of a row by which cachesvc decides. Fingerprints carry it as ``schema``, and one
that this table does not reach is refused. Other rows are added without raising it: who does not know them
loses an explanation and no correctness."""

MAX_LISTED = 64
MAX_TEXT = 200
"""Elements of a list and characters of a text, at most, that what is read here makes of a fact."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One row.

    ``rule``: *equal*, *covers* (the consumer's set holds the builder's), *within* (the builder's set holds
    the consumer's), *at_least* (the consumer's dotted version is not lower).
    ``decider``: *cachesvc*, a difference is a refusal; *compiler*, PyTorch's own keys decide, so a
    difference explains a miss and refuses nothing; *nobody*, for people who read ``explain``.
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
    decider: Decider = "cachesvc"
    group: Group = "environment"


def _asked(name: str, why: str, mend: str, rule: Rule = "within", decider: Decider = "compiler") -> Factor:
    """A row of the workload: known once something is compiled, so its absence means nothing."""
    return Factor(name, rule, "any", 1, "accept", why, mend, decider, "workload")


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
        "warm on the oldest CPU generation of the fleet; on the same model if the entry names one (model:…)",
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
        "the number of threads is in the key of CPU graphs (up to 2.12 cachesvc adds it); unknown before "
        "torch is loaded",
        "set OMP_NUM_THREADS to the builder's value in both places",
    ),
    _asked(
        "grad",
        "grad mode is in AOTAutograd's key; with grad on, a backward is compiled too",
        "call the model under the grad mode that it was warmed with (`grad` in the spec)",
    ),
    _asked(
        "autocast",
        "autocast's state and dtype are in AOTAutograd's key (up to 2.12 cachesvc adds the dtype)",
        "use the autocast that it was warmed with (`autocast` in the spec)",
    ),
    _asked(
        "device",
        "the device is in the key with its index: cuda:0 is not cuda:1",
        "show this process the builder's device index alone (CUDA_VISIBLE_DEVICES)",
    ),
    _asked(
        "dtype",
        "the dtypes of inputs and parameters are in every key",
        "warm this dtype too (`dtypes` in the spec)",
    ),
    _asked(
        "options",
        "mode and options of torch.compile patch Inductor's configuration, which is in the FX key",
        "warm this mode too (`modes` or `options` in the spec)",
    ),
    _asked(
        "dynamic",
        "a graph of dynamic shapes is another graph; PyTorch makes one by itself when a second shape comes",
        "warm with the same `dynamic`, and with two input sets if shapes vary",
    ),
    _asked(
        "shapes",
        "the sizes of inputs are in the key, save those that are dynamic",
        "warm these shapes too (an input set), or with dynamic = true",
    ),
    _asked(
        "strides",
        "the memory layout of inputs is in the key",
        "warm inputs of this layout, or call .contiguous()",
    ),
    _asked(
        "matmul_precision",
        "torch.set_float32_matmul_precision is in the FX key",
        "set the builder's precision, or have warm's factory set yours",
    ),
    _asked(
        "deterministic",
        "torch.use_deterministic_algorithms is in the FX key",
        "set it alike in build and service",
    ),
    _asked(
        "default_dtype",
        "torch.set_default_dtype is in the FX key (up to 2.12 cachesvc adds it)",
        "set it alike in build and service",
    ),
    _asked(
        "inductor_config",
        "Inductor's configuration, where code has set it, is in the FX key",
        "set it alike in build and service (warm's factory may set it)",
        "equal",
    ),
    _asked(
        "functorch_config",
        "functorch's configuration is in AOTAutograd's key, whole",
        "set it alike in build and service (warm's factory may set it)",
        "equal",
    ),
    Factor(
        "settings",
        "equal",
        "any",
        1,
        "accept",
        "variables that change PyTorch's keys, as NAME=value",
        "set them alike in build and service",
        "compiler",
    ),
    _asked(
        "libraries",
        "a model's library decides which operations it traces to",
        "install the versions that the entry was built with, or warm with yours",
    ),
    _asked(
        "parameters",
        "the sizes of parameters and buffers are in the key; their values are not",
        "warm the model that is served",
    ),
    _asked(
        "triton_kernels",
        "the source of a user's Triton kernels, with what they call, their constants and their "
        "configurations, is in the key",
        "warm the kernels that are served",
    ),
    _asked(
        "python_operators",
        "the Python code of operators that a compile traces into (a backward, a triton_op's body) is in no "
        "key of PyTorch's; cachesvc puts its digest into AOTAutograd's",
        "warm the operators that are served",
    ),
    _asked(
        "operations",
        "the traced graph is the key: its operations, and the constants in them",
        "warm the model that is served",
    ),
    _asked(
        "model",
        "the hash of the module: structure, configuration and source files; it ranks the candidates, and a "
        "comment changes it",
        "warm the model that is served, unless only its text has changed",
        "equal",
        "nobody",
    ),
    Factor(
        "driver",
        "equal",
        "gpu",
        1,
        "accept",
        "the NVIDIA driver; decides nothing by itself",
        "",
        "nobody",
    ),
    Factor("gpu_count", "equal", "gpu", 1, "accept", "visible devices", "", "nobody"),
    Factor("mig", "equal", "gpu", 1, "accept", "the MIG profile; its name is part of `gpu`", "", "nobody"),
    Factor("cpu_model", "equal", "host", 1, "accept", "for people who read `explain`", "", "nobody"),
)

DECIDERS: tuple[Decider, ...] = ("cachesvc", "compiler", "nobody")

BY_NAME: Mapping[str, Factor] = {factor.name: factor for factor in FACTORS}
_MODEL = ("parameters", "triton_kernels", "python_operators", "operations")
_RANK = {name: rank for rank, name in enumerate(BY_NAME)}


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

    @property
    def advice(self) -> str:
        """The difference and what to do about it, as one line."""
        return f"{self}: {self.mend}" if self.mend else str(self)


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


def partition(fingerprint: Fingerprint, scopes: Iterable[str]) -> Digest:
    """The digest of the deciding factors: entries of different partitions never replace each other."""
    counted = {"any", *scopes}
    deciding = {
        factor.name: fingerprint[factor.name]
        for factor in FACTORS
        if factor.decider == "cachesvc" and factor.scope in counted and factor.name in fingerprint
    }
    return Digest.of(canonical({"scopes": sorted(counted), "factors": deciding}))


def known_partition(fingerprint: Fingerprint) -> Digest:
    """The digest of the deciding factors that every process knows from its start on: what may be unknown, and
    is taken from the entry then, is left out."""
    optional = {factor.name for factor in FACTORS if factor.absent_mine == "accept"}
    known = {name: value for name, value in fingerprint.items() if name not in optional}
    return partition(known, ("gpu", "host"))


def environment(mine: Fingerprint, theirs: Fingerprint, scopes: Iterable[str]) -> Digest:
    """The partition that ``mine`` is, seen from an entry: what an environment cannot tell, and may take from
    the entry, is the entry's. So a service that has not loaded torch yet, and knows no number of threads, is
    of the environment that it will be."""
    taken = {
        factor.name: theirs[factor.name]
        for factor in FACTORS
        if factor.absent_mine == "accept" and factor.name in theirs and factor.name not in mine
    }
    return partition({**mine, **taken}, scopes)


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
        return Difference(factor.name, _shown(extra), _shown(sorted(there - here)), decides, factor.mend)
    return Difference(factor.name, _shown(left), _shown(right), decides, factor.mend)


def _shown(value: FactorValue | None) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, list):
        more = f", and {len(value) - 8} more" if len(value) > 8 else ""
        return (", ".join(map(str, value[:8]))[: 2 * MAX_TEXT] + more) or "none"
    return str(value)[:MAX_TEXT]


def bounded(facts: Mapping[str, Any]) -> Facts:
    """What is read here as facts that may travel: scalars and lists of texts, none longer than
    ``MAX_TEXT`` or ``MAX_LISTED``. A list that is longer ends with a digest of the rest, so that two
    different ones stay different; what is neither is left out."""
    made: Facts = {}
    for name, value in facts.items():
        if isinstance(value, (bool, int)):
            made[name] = value
        elif isinstance(value, str):
            made[name] = _cut(value)
        elif isinstance(value, (list, tuple, set, frozenset)):
            texts = sorted({str(item) for item in value})
            rest = texts[MAX_LISTED - 1 :] if len(texts) > MAX_LISTED else []
            kept = texts[: MAX_LISTED - 1] if rest else texts
            tail = [f"and {len(rest)} more, {Digest.of(canonical(rest))[:23]}"] if rest else []
            made[name] = [*map(_cut, kept), *tail]
    return made


def union(every: Iterable[Mapping[str, Any]]) -> Facts:
    """All values that each fact has in any of ``every``: of the graphs of a process, of the ranks of a job;
    `bounded`."""
    made: dict[str, set[str]] = {}
    for facts in every:
        for name, value in facts.items():
            values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
            made.setdefault(name, set()).update(map(str, values))
    return bounded(made)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[: MAX_TEXT - 24]} {Digest.of(text.encode('utf-8', 'replace'))[:23]}"
