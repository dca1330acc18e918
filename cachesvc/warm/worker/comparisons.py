"""Compare the outputs of a compiled model with those of eager PyTorch and of the builder, and its speed with
eager's; for `worker`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cachesvc_client.canary.tolerance import Compared

from .execution import Execution
from .phase import PhaseRequest, PhaseResult


def compare_with_eager(request: PhaseRequest, execution: Execution) -> PhaseResult:
    """Compare compiled outputs with eager ones of the same process.

    Saves the compiled outputs in ``request.reference``, for the replays.
    """
    model, compiled, result = execution.model, execution.compiled, execution.result
    if model is None or compiled is None:
        return result
    import torch

    reference: dict[str, Any] = {"weights": result.model.weights if result.model else ""}
    comparisons = {}
    for name in model.input_names:
        outputs = model.outputs(compiled, name, "the compiled model")
        with model.eager():
            eager = model.outputs(model.module, name, "the eager model")
            other_seed = model.outputs(model.module, name, "the eager model", seed=1)
        comparisons[name] = model.compare(outputs, eager)
        if not model.compare(other_seed, eager).passed:
            note = "random: eager differs from itself under another seed (dropout?)"
            comparisons[name] = Compared(note=note)
            outputs = []
        reference[name] = outputs
    torch.save(reference, request.reference)
    return replace(result, comparisons=comparisons)


def compare_with_builder(request: PhaseRequest, execution: Execution) -> PhaseResult:
    """Compare restored outputs with the builder's compiled ones, where both have the same weights."""
    model, compiled, result = execution.model, execution.compiled, execution.result
    if model is None or compiled is None or not Path(request.reference).is_file():
        return result
    import torch

    reference = torch.load(request.reference, weights_only=True)
    same_weights = result.model is not None and reference["weights"] == result.model.weights
    comparisons = {}
    for name in model.input_names:
        if not same_weights:
            note = "the factory makes other weights or inputs in each process: seed it to have them compared"
            comparisons[name] = Compared(note=note)
        elif not reference[name]:
            comparisons[name] = Compared(note="random, or no tensors in the output")
        else:
            outputs = model.outputs(compiled, name, "the restored model")
            comparisons[name] = model.compare(outputs, reference[name])
    return replace(result, comparisons=comparisons)


def compare_speed(execution: Execution, result: PhaseResult) -> PhaseResult:
    """Return the result with steady times of the compiled and of the eager model, where it has both."""
    model, compiled = execution.model, execution.compiled
    if model is None or compiled is None:
        return result
    times = {
        name: replace(result.times[name], steady=steady, eager_steady=eager)
        for name, (steady, eager) in model.steady_times(compiled).items()
    }
    return replace(result, times=times)
