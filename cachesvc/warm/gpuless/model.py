"""The model of a target on a GPU that is not there: made on the CPU, then placed as fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..spec.plan import Job
from ..worker.factory_model import Arguments, FactoryModel
from ..worker.phase import ModelFacts
from .decisions import GpuNeeded
from .stand_in import StandIn


class AbsentGpuModel(FactoryModel):
    """Holds a factory's module on the absent GPU, with its input sets.

    The factory runs as always, on the CPU, with real values; so do the functions that make inputs. Only then
    do parameters, buffers and inputs become fake tensors.
    """

    def __init__(self, job: Job, stand_in: StandIn) -> None:
        """Raise ``UserCodeError``, and `GpuNeeded` for a target that is not for a GPU's inference."""
        if job.spec.device == "cpu":
            raise GpuNeeded(
                'without a GPU: the target is for the CPU (device = "cpu"): warm it without --for-gpu'
            )
        if job.spec.kind == "training" or job.spec.grad == "grad":
            raise GpuNeeded(
                "without a GPU: a backward needs one: PyTorch's autograd asks the driver for its streams "
                '(grad = "no_grad" or "inference_mode" compiles the forward alone)'
            )
        self._stand_in = stand_in
        self._placed = False
        super().__init__(job)
        self._facts = super().describe()
        if isinstance(self.module, torch.nn.Module):
            stand_in.place(self.module)
        self._placed = True

    def describe(self) -> ModelFacts:
        """Return the facts of the model as it was on the CPU."""
        return self._facts

    def inputs(self, name: str) -> Arguments:
        """Return the arguments of one input set, fake ones once the model is placed."""
        device, self.device = self.device, torch.device("cpu")
        try:
            arguments = super().inputs(name)
        finally:
            self.device = device
        return tree_map(self._move, arguments) if self._placed else arguments

    def _place(self) -> None:
        if isinstance(self.module, torch.nn.Module):
            if self.job.dtype:
                self.module.to(dtype=getattr(torch, self.job.dtype))
            self.module.eval()

    def _move(self, value: Any) -> Any:
        """Return a tensor on the absent GPU, with what says that its sizes are dynamic."""
        if not isinstance(value, torch.Tensor):
            return value
        moved = self._stand_in.move(value)
        marks = {mark: text for mark, text in vars(value).items() if mark.startswith("_dynamo_")}
        vars(moved).update(marks)
        return moved

    def _call(self, function: Callable[..., Any], name: str, arguments: Arguments, what: str) -> Any:
        with self._stand_in.calls():
            return super()._call(function, name, arguments, what)
