"""Defines the factor table: the one place that says which facts of an environment and of a workload count.

Facts are a dictionary from factor name to value: a fingerprint for the environment (``detect`` fills it), and
what a compile was asked for (``graphs.request`` fills it). ``FACTORS`` says for each factor which rule
compares it, who decides by it, for which content it counts (*scope*), since which schema version it exists,
what its absence means and why it is there. Client and server use this one table; :func:`compare` decides,
:func:`differences` explains, and ``docs/keys.md`` is printed from it.

A new factor is one row here and one golden test. ``absent_mine`` says what happens where a client does not
know a fact; a factor that an (older) entry does not carry decides nothing. The order is that of importance: a
row whose change also changes other rows stands before them, so that the first difference is the cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Union

FactorValue = Union[str, int, bool, list[str]]
"""Types that a fact may have."""
Facts = dict[str, FactorValue]
"""Maps the names of factors to values."""
Fingerprint = Facts
"""Holds the facts of an environment."""
Scope = Literal["any", "gpu", "host"]
Rule = Literal["equal", "covers", "within", "at_least"]
Decider = Literal["cachesvc", "compiler", "nobody"]
Group = Literal["environment", "workload"]

SCHEMA = 1
"""Newest ``since`` of a row by which cachesvc decides. Fingerprints carry it as ``schema``; an entry of a
newer schema is refused. Other rows are added without raising it: a client that does not know them loses an
explanation and no correctness."""


@dataclass(frozen=True, slots=True)
class Factor:
    """Describes one row of the table.

    ``rule``: *equal*, *covers* (the consumer's set has the builder's), *within* (the builder's set holds
    the consumer's), *at_least* (the consumer's dotted version is not lower). ``decider``: *cachesvc*, a
    difference is a refusal; *compiler*, PyTorch's own keys decide, so a difference explains a miss and
    refuses nothing; *no one*, for people who read ``explain``. ``scope``: *any* always counts; *gpu* if the
    entry holds GPU code; *host* if it holds host code. ``absent_mine``: what happens if the consumer does not
    know the fact: *refuse* (doubt is a miss) or *accept* (the value of the entry counts).
    """

    name: str
    rule: Rule
    scope: Scope
    since: int
    absent_mine: Literal["refuse", "accept"]
    why: str
    fix: str
    decider: Decider = "cachesvc"
    group: Group = "environment"


def _workload_factor(
    name: str, why: str, fix: str, rule: Rule = "within", decider: Decider = "compiler"
) -> Factor:
    """Makes a row of the workload. The fact is known once something is compiled, so its absence means
    nothing."""
    return Factor(name, rule, "any", 1, "accept", why, fix, decider, "workload")


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
        "warm under the same ATEN_CPU_CAPABILITY and CPU generation; with march in the spec, set "
        "CACHESVC_MARCH in the service",
    ),
    Factor(
        "cpu_flags",
        "covers",
        "host",
        1,
        "refuse",
        "kernels are built with -march=native: code for flags that this CPU lacks dies with SIGILL; march:… "
        "is the level for which they are built instead",
        "warm on the oldest CPU generation of the fleet; on the same model if the entry names one (model:…); "
        "set CACHESVC_MARCH to the level that the entry names (march:…), and unset it if it names none",
    ),
    Factor(
        "cxx",
        "equal",
        "host",
        1,
        "accept",
        "the C++ compiler is part of what was built; an image where none runs takes the builder's",
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
    _workload_factor(
        "modules",
        "the classes of a model's modules and their numbers: another model has other operations; in no key",
        "another model is served than was warmed: warm this one",
    ),
    _workload_factor(
        "libraries",
        "a model's library decides which operations it traces to",
        "install the versions that the entry was built with, or warm with yours",
    ),
    _workload_factor(
        "options",
        "mode and options of torch.compile patch Inductor's configuration, which is in the FX key",
        "warm this mode too (`modes` or `options` in the spec)",
    ),
    _workload_factor(
        "grad",
        "grad mode is in AOTAutograd's key; with grad on, a backward is compiled too",
        "call the model under the grad mode that it was warmed with (`grad` in the spec)",
    ),
    _workload_factor(
        "autocast",
        "autocast's state and dtype are in AOTAutograd's key (up to 2.12 cachesvc adds the dtype)",
        "use the autocast that it was warmed with (`autocast` in the spec)",
    ),
    _workload_factor(
        "device",
        "the device is in the key with its index: cuda:0 is not cuda:1",
        "show this process the builder's device index alone (CUDA_VISIBLE_DEVICES)",
    ),
    _workload_factor(
        "dtype",
        "the dtypes of inputs and parameters are in every key",
        "warm this dtype too (`dtypes` in the spec)",
    ),
    _workload_factor(
        "dynamic",
        "a graph of dynamic shapes is another graph; PyTorch makes one by itself when a second shape comes",
        "warm with the same `dynamic`, and with two input sets if shapes vary",
    ),
    _workload_factor(
        "shapes",
        "the sizes of inputs are in the key, save those that are dynamic",
        "warm these shapes too (an input set), or with dynamic = true",
    ),
    _workload_factor(
        "strides",
        "the memory layout of inputs is in the key",
        "warm inputs of this layout, or call .contiguous()",
    ),
    _workload_factor(
        "matmul_precision",
        "torch.set_float32_matmul_precision is in the FX key",
        "set the builder's precision, or have warm's factory set yours",
    ),
    _workload_factor(
        "deterministic",
        "torch.use_deterministic_algorithms is in the FX key",
        "set it alike in build and service",
    ),
    _workload_factor(
        "default_dtype",
        "torch.set_default_dtype is in the FX key (up to 2.12 cachesvc adds it)",
        "set it alike in build and service",
    ),
    _workload_factor(
        "inductor_config",
        "Inductor's configuration, where code has set it, is in the FX key",
        "set it alike in build and service (warm's factory may set it)",
        "equal",
    ),
    _workload_factor(
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
    _workload_factor(
        "parameters",
        "the sizes of parameters and buffers are in the key; their values are not",
        "warm the model that is served",
    ),
    _workload_factor(
        "triton_kernels",
        "the source of a user's Triton kernels, with what they call, their constants and their "
        "configurations, is in the key",
        "warm the kernels that are served",
    ),
    _workload_factor(
        "python_operators",
        "the code of operators, in Python or C++, that a compile traces into (a backward, a triton_op's "
        "body) is in no key of PyTorch's; cachesvc puts its digest into AOTAutograd's",
        "warm the operators that are served",
    ),
    _workload_factor(
        "operations",
        "the traced graph is the key: its operations, and the constants in them",
        "warm the model that is served",
    ),
    _workload_factor(
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
"""All rows, the most important first."""

DECIDERS: tuple[Decider, ...] = ("cachesvc", "compiler", "nobody")
"""All deciders, the one whose differences matter most first."""

BY_NAME: Mapping[str, Factor] = {factor.name: factor for factor in FACTORS}
"""Rows of the table by name."""
