"""Targets x dtypes x modes -> jobs. Pure: touches no file, process or network."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cachesvc_client.canary import tolerance
from cachesvc_client.canary.tolerance import Tolerance
from cachesvc_client.environment.model_hash import compile_options
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import SpecError
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.names import Target
from cachesvc_client.wire.records import Workload

from .spec import Spec, TargetSpec
from .toml_table import did_you_mean


@dataclass(frozen=True, slots=True)
class Job:
    """One entry to make: a target with one dtype and one mode. ``dtype`` empty: as the factory made it.
    ``folder``: the spec's, absolute; where factories are imported from."""

    target: Target
    spec: TargetSpec
    dtype: str
    mode: str
    folder: str

    @property
    def is_script(self) -> bool:
        return bool(self.spec.script)

    @property
    def options(self) -> dict[str, FactorValue]:
        """Everything declared that decides what is compiled, as text: part of the workload."""
        spec = self.spec
        if self.is_script:
            made: dict[str, FactorValue] = {"args": json.dumps(spec.args)}
        else:
            made = compile_options(
                mode=self.mode, dynamic=spec.dynamic, fullgraph=spec.fullgraph, options=spec.options
            )
            made["grad_mode"] = spec.grad
        made["device"] = spec.device
        made |= {f"env.{key}": value for key, value in spec.env.items()}
        return made

    def tolerance(self, dtype: str) -> Tolerance:
        """The declared one, else the default for ``dtype``: autocast's, the job's, or the model's own."""
        if self.spec.tolerance:
            return self.spec.tolerance
        return tolerance.tolerance([self.spec.autocast or self.dtype or dtype])

    def workload(
        self, *, model: Digest | None, script: Digest | None, inputs: dict[str, Any], dtype: str
    ) -> Workload:
        """The workload of the entry. ``model``, ``inputs`` and ``dtype`` are known once a process has
        built the model; ``script`` is the digest that stands for it in a script target."""
        return Workload(
            model=model,
            script=script,
            inputs=inputs,
            options=self.options,
            dtype=dtype,
            grad=self.spec.grad == "grad" and not self.is_script,
            training=self.spec.kind == "training",
            autocast=self.spec.autocast,
            ranks=self.spec.nproc,
        )


def plan(spec: Spec, only: Iterable[str] = ()) -> tuple[Job, ...]:
    """One job per target, dtype and mode, in the spec's order.

    ``only``: ids of targets, or whole names such as ``bert/float32/default``; none means all.
    Raises ``SpecError`` for one that the spec does not have.
    """
    jobs = tuple(job for target in spec.targets for job in _variants(target, str(spec.path.parent)))
    wanted = list(only)
    known = [target.id for target in spec.targets] + [str(job.target) for job in jobs]
    for name in wanted:
        if name not in known:
            raise SpecError(f"{spec.path}: no target {name!r}", did_you_mean(name, known, "the spec has: "))
    return tuple(job for job in jobs if not wanted or job.target in wanted or job.spec.id in wanted)


def _variants(target: TargetSpec, folder: str) -> list[Job]:
    if target.script:
        return [Job(Target(target.id), target, "", "", folder)]
    return [
        Job(Target("/".join(filter(None, (target.id, dtype, mode)))), target, dtype, mode, folder)
        for dtype in target.dtypes or ("",)
        for mode in target.modes
    ]
