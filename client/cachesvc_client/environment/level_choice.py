"""Choose the level of x86-64 for this process: the best of those in ``CACHESVC_MARCH`` that its CPU has.

An image has one value for all machines, and each process uses what fits: `march.variables` of the level are
set before PyTorch reads them. Where none fits, nothing is set: the process compiles for its CPU, as without
us.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple

from ..wire.factors import Fingerprint
from . import cpu, cxx, march, releases

SETTING = "CACHESVC_MARCH"
READER = "torch._inductor.config"
"""The module that reads `march.VARIABLE`, when it is imported."""


class Choice(NamedTuple):
    """Says which variables to set. ``line``: why none, for a user who asked for a level."""

    variables: Mapping[str, str] = {}
    line: str = ""


def parse_levels(text: str) -> tuple[str, ...]:
    """Return the levels that a text names, the best first. Raises ``ValueError`` with what is allowed."""
    names = text.replace(",", " ").split()
    if not names or not march.LEVELS.keys() >= set(names):
        raise ValueError(f"allowed: {', '.join(march.LEVELS)}, several with commas")
    return tuple(level for level in reversed([*march.LEVELS]) if level in names)


def choose_level(environ: Mapping[str, str]) -> Choice:
    """Return the choice for a process with these variables.

    Where one that PyTorch reads is set, nothing is chosen. Nor is by a malformed setting, which the
    configuration reports.
    """
    try:
        levels = parse_levels(environ.get(SETTING, ""))
    except ValueError:
        return Choice()
    wanted = [march.variables(level) for level in levels]
    given = {name: environ[name] for name in wanted[0] if environ.get(name)}
    if given in wanted:
        return Choice()  # this process's parent has chosen
    if given:
        text = " and ".join(f"{name}={value[:40]}" for name, value in given.items())
        return Choice(line=f"{SETTING} does nothing, since {text} holds: unset one of them")
    if READER in sys.modules:
        return Choice(line=f"{SETTING} does nothing, since torch's compiler is loaded: attach before it")
    here = _facts(environ)
    problems = [march.refusal(level, here) for level in levels]
    if None in problems:
        return Choice(wanted[problems.index(None)])
    return Choice(
        line=f"{SETTING}={environ[SETTING].strip()[:60]} does nothing: {levels[-1]}: {problems[-1]}"
    )


def set_level(environ: MutableMapping[str, str] = os.environ) -> str:
    """Set the variables of the best level in this process; return a line for the user if there is none."""
    choice = choose_level(environ)
    environ.update(choice.variables)
    return choice.line


def _facts(environ: Mapping[str, str]) -> Fingerprint:
    """Return what `march.refusal` asks."""
    machine, compiler = os.uname().machine, cxx.identity(environ)
    facts: Fingerprint = {
        "platform": f"{sys.platform}-{machine}",
        "torch": releases.torch()[0] or "unknown",
        "cpu_flags": cpu.cpu_flags(machine, cpu.read_cpuinfo()) or [],
    }
    return {**facts, "cxx": compiler} if compiler else facts
