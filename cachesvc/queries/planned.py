"""Make the facts of environments that do not run yet, of a file, of a seen environment, and of changes.

A fact that nobody can know before a start is left out: then `coverage` says *unknown*, or which fact of the
entry it assumes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest, NotFound
from cachesvc_client.wire.factors import BY_NAME, FactorValue, Facts, Fingerprint
from cachesvc_client.wire.suggestion import did_you_mean

MACHINE_FACTORS = (
    *("gpu", "compute_capability", "driver", "gpu_count", "mig"),
    *("cpu_isa", "cpu_flags", "cpu_model"),
)
"""Facts that the machine brings, and not the image."""
FOLLOWING: Mapping[str, tuple[str, ...]] = {
    "torch": ("triton", "cuda"),
    "gpu": ("compute_capability", "driver", "gpu_count", "mig"),
}
"""Facts that change with another one: with a change of the fact by which they stand, they are not known."""
_NUMBERS = ("threads", "gpu_count", "schema")
"""Factors whose value is a number."""
_LISTS = ("cpu_flags", "settings")
"""Factors whose value is a list, in a change with commas between."""
_LEAST_DIGITS = 6
"""Digits of a digest that name an environment."""


@dataclass(frozen=True, slots=True)
class PlannedEnvironment:
    """Holds an environment of which `coverage` makes a row. ``label``: what its file calls it, such as an
    image with its digest. ``planned``: whether it is of a plan. ``starts``: number of starts that services of
    the environment it is made of reported."""

    facts: Fingerprint
    label: str = ""
    planned: bool = True
    starts: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Says which environments are planned.

    ``given``: those of files, and this machine. ``like``: texts that name environments that the registry has
    seen, see `named`; ``of_all``: all of these. ``machine``: a file, or a text as those of ``like``: its
    machine takes the place of those of the given environments. ``changes``: facts that all of them get.
    ``targets``: the only ones that count. ``model``: the hash of the model that starts, where it is known.
    """

    given: tuple[PlannedEnvironment, ...] = ()
    like: tuple[str, ...] = ()
    of_all: bool = False
    machine: str | None = None
    changes: Facts = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    model: Digest | None = None

    @property
    def needs_seen(self) -> bool:
        """Return whether the environments that reported starts are needed."""
        return bool(self.of_all or self.like or self.machine or self.changes)

    def environments(self, seen: Sequence[PlannedEnvironment]) -> list[PlannedEnvironment]:
        """Return the planned environments, each once. ``seen``: those that the registry has seen. Raises
        ``NotFound`` for a text of ``like`` that none of them has."""
        known = [one.facts for one in seen]
        of_seen = list(seen) if self.of_all else [row for text in self.like for row in named(text, seen)]
        machine = None if self.machine is None else machine_of(self.machine, seen)
        bases = [*(with_machine(one, machine) for one in self.given), *of_seen]
        rows: list[PlannedEnvironment] = []
        for one in bases:
            facts = changed(one.facts, self.changes, known)
            same = next((row for row in rows if row.facts == facts and row.label == one.label), None)
            if same is not None:
                rows.remove(same)
            starts = one.starts + (same.starts if same is not None else 0)
            rows.append(PlannedEnvironment(facts, one.label, True, starts))
        return rows


def named(text: str, seen: Sequence[PlannedEnvironment]) -> list[PlannedEnvironment]:
    """Return the seen environments that ``text`` names: the begin of a digest, as ``coverage --json`` has it,
    or a part of the name of the GPU. Raises ``NotFound``."""
    from cachesvc_client.wire.partitions import known_partition

    short = text.removeprefix("sha256:").lower()
    rows = [
        one
        for one in seen
        if (len(short) >= _LEAST_DIGITS and _digest(known_partition(one.facts)).startswith(short))
        or (text and text.lower() in str(one.facts.get("gpu", "")).lower())
    ]
    if not rows:
        raise NotFound(
            f"--like {text[:80]!r}: the registry has seen no such environment with this name",
            "coverage --json lists them; a part of the name of a GPU will do too",
        )
    return rows


def read_environment(path: Path) -> PlannedEnvironment:
    """Read an environment from what ``environment`` or ``doctor --json`` printed there, or from a report.
    Raises ``InvalidRequest``."""
    from cachesvc_client.queries.explain import environment_facts, read_facts

    facts = environment_facts(read_facts(path))
    return PlannedEnvironment(facts, _label_of(path))


def _label_of(path: Path) -> str:
    value = json.loads(path.read_bytes())
    label = value.get("label") if isinstance(value, dict) else None
    return label[:200] if isinstance(label, str) else ""


def machine_of(text: str, seen: Sequence[PlannedEnvironment]) -> Facts:
    """Return the facts of a machine, of a file or of an environment that the registry has seen. Raises
    ``InvalidRequest`` if several machines are meant, and ``NotFound``."""
    path = Path(text)
    rows = [read_environment(path)] if path.suffix == ".json" or path.is_file() else named(text, seen)
    machines = [{name: one.facts[name] for name in MACHINE_FACTORS if name in one.facts} for one in rows]
    if any(machine != machines[0] for machine in machines):
        raise InvalidRequest(
            f"--machine {text[:80]!r}: {len(rows)} environments of several machines have this name",
            "give the begin of a digest, as coverage --json lists them, or a file",
        )
    return machines[0]


def with_machine(one: PlannedEnvironment, machine: Facts | None) -> PlannedEnvironment:
    """Return an environment of an image on another machine than the one on which it was described."""
    if machine is None:
        return one
    facts = {name: value for name, value in one.facts.items() if name not in MACHINE_FACTORS}
    facts |= {name: machine[name] for name in MACHINE_FACTORS if name in machine}
    return PlannedEnvironment(facts, one.label, one.planned, one.starts)


def changed(base: Facts, changes: Facts, known: Iterable[Facts] = ()) -> Facts:
    """Return the facts ``base`` with ``changes``.

    A fact that follows a changed one (``FOLLOWING``) is taken from ``known`` environments with that value of
    the changed one if all of these agree, and is left out else. A version of torch without a local part, such
    as ``+cu130``, takes the local part of the base.
    """
    changes = dict(changes)
    torch, before = changes.get("torch"), base.get("torch")
    if isinstance(torch, str) and "+" not in torch and isinstance(before, str) and "+" in before:
        changes["torch"] = f"{torch}+{before.partition('+')[2]}"
    facts = {**base, **changes}
    known = list(known)
    for name, followers in FOLLOWING.items():
        if name not in changes or facts[name] == base.get(name):
            continue
        for follower in followers:
            if follower in changes:
                continue
            facts.pop(follower, None)
            values = [one[follower] for one in known if one.get(name) == facts[name] and follower in one]
            decides = BY_NAME[follower].decider == "cachesvc"
            if decides and values and all(value == values[0] for value in values):
                facts[follower] = values[0]
    return facts


def parse_change(text: str) -> tuple[str, FactorValue]:
    """Parse ``factor=value`` of a command line. Raises ``InvalidRequest`` for a factor that does not exist,
    or that is none of an environment."""
    name, equals, value = text.partition("=")
    allowed = [factor.name for factor in BY_NAME.values() if factor.group == "environment"]
    if not equals or not value or name not in allowed:
        raise InvalidRequest(
            f"--set {text[:80]!r}: factor=value with a factor of an environment",
            did_you_mean(name, allowed, "the factors are in docs/keys.md"),
        )
    if name in _NUMBERS:
        if not (value.isascii() and value.isdigit() and len(value) < 10):
            raise InvalidRequest(f"--set {name}: {value[:40]!r} is no number")
        return name, int(value)
    return name, [part.strip() for part in value.split(",")] if name in _LISTS else value


def assumed(here: Facts, entry: Facts, scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the deciding factors that an entry has and ``here`` does not know: a start with other values
    does not fit, or its compiler does not use the entry."""
    counted = {"any", *scopes}
    return tuple(
        factor.name
        for factor in BY_NAME.values()
        if factor.decider == "cachesvc"
        and factor.scope in counted
        and factor.name in entry
        and factor.name not in here
    )


def _digest(digest: Digest) -> str:
    return str(digest).removeprefix("sha256:")
