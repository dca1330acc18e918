"""Plan the jobs of a spec: targets x dtypes x modes x levels. Pure: touches no file, process or network."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cachesvc_client.environment import march
from cachesvc_client.environment.model_hash import compile_options
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import SpecError
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Target

from .spec import RANKS, Spec, TargetSpec
from .toml_table import did_you_mean


@dataclass(frozen=True, slots=True)
class Job:
    """Describes one entry to make: a target with one dtype and one mode, for one level.

    ``dtype``: empty for a model whose parameters stay as the factory made them. ``folder``: the spec's,
    absolute, from which factories are imported. ``level``: empty for the CPU of the build.
    """

    target: Target
    spec: TargetSpec
    dtype: str
    mode: str
    folder: str
    level: str = ""

    @property
    def label(self) -> Target:
        """Return what tells this job from the others of its run: levels of one target are entries for
        environments of their own."""
        return Target(f"{self.target}/{self.level}") if len(self.spec.march) > 1 else self.target

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that the spec sets for the processes of this job."""
        return {**self.spec.env, **(march.variables(self.level) if self.level else {})}

    @property
    def is_script(self) -> bool:
        """Return whether the target is a script."""
        return bool(self.spec.script)

    @property
    def is_engine(self) -> bool:
        """Return whether the target is an engine; if it is no script either, it is a factory's model."""
        return bool(self.spec.vllm)

    @property
    def ranks(self) -> int:
        """Return how many processes compile what one entry holds: ranks of a script, or of an engine."""
        args = self.spec.args
        return int(args.get(RANKS, 1)) if self.is_engine and isinstance(args, dict) else self.spec.nproc

    @property
    def options(self) -> dict[str, FactorValue]:
        """Return everything in the spec that decides what is compiled, as text: a part of the workload."""
        spec = self.spec
        if self.is_script or self.is_engine:
            options: dict[str, FactorValue] = {"args": json.dumps(spec.args)}
        else:
            options = compile_options(
                mode=self.mode, dynamic=spec.dynamic, fullgraph=spec.fullgraph, options=spec.options
            )
            options["grad_mode"] = spec.grad
        options["device"] = spec.device
        options |= {f"env.{key}": value for key, value in self.env.items()}
        return options

    def workload(
        self, *, model: Digest | None, script: Digest | None, inputs: dict[str, Any], dtype: str
    ) -> Workload:
        """Return the workload of the entry.

        ``model``, ``inputs`` and ``dtype`` are known once a process has built the model. ``script``: the
        digest that identifies a script or an engine, of which `warm` has no model.
        """
        return Workload(
            model=model,
            script=script,
            inputs=inputs,
            options=self.options,
            dtype=dtype,
            grad=self.spec.grad == "grad" and not self.is_script,
            training=self.spec.kind == "training",
            autocast=self.spec.autocast,
            ranks=self.ranks,
        )


def plan(spec: Spec, only: Iterable[str] = ()) -> tuple[Job, ...]:
    """Return one job for each target, dtype, mode and level, in the spec's order.

    ``only``: ids of targets, or whole names such as ``bert/float32/default``; none means all.
    Raises ``SpecError`` for a name that the spec does not have.
    """
    jobs = tuple(job for target in spec.targets for job in _variants(target, str(spec.path.parent)))
    selected = list(only)
    names = {job.label: {job.spec.id, str(job.target), str(job.label)} for job in jobs}
    known = list(dict.fromkeys([*(job.spec.id for job in jobs), *(job.target for job in jobs), *names]))
    for name in selected:
        if name not in known:
            raise SpecError(f"{spec.path}: no target {name!r}", did_you_mean(name, known, "the spec has: "))
    return tuple(job for job in jobs if not selected or names[job.label].intersection(selected))


def _variants(target: TargetSpec, folder: str) -> list[Job]:
    if target.script or target.vllm:
        variants = [(Target(target.id), "", "")]
    else:
        variants = [
            (Target("/".join(filter(None, (target.id, dtype, mode)))), dtype, mode)
            for dtype in target.dtypes or ("",)
            for mode in target.modes
        ]
    return [
        Job(name, target, dtype, mode, folder, level)
        for name, dtype, mode in variants
        for level in target.march or ("",)
    ]
