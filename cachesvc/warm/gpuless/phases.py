"""Do the phases of a target for a GPU that this machine does not have; for `worker`.

eager     builds the model and describes it; calls nothing, since fake tensors have no values
compile   compiles all input sets with the stand-in, builds Triton's helper, captures
replay    restores the bundle in a fresh process with the stand-in, compiles all input sets again, and reports
          what was compiled nevertheless. It shows that keys and files belong together, not that a GPU finds
          and runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cachesvc_client.environment.detect import detect

from ..worker.around_compile import CompilingProcess, RestoringProcess
from ..worker.execution import describe_compiles
from ..worker.phase import PhaseRequest, PhaseResult
from ..worker.user_code import UserCodeError, add_import_paths
from . import description, helper, stand_in
from .decisions import GpuNeeded
from .stand_in import StandIn


def perform(request: PhaseRequest) -> PhaseResult:
    """Do one phase. Raises `GpuNeeded` with the step that needs the GPU, and what the phase itself raises."""
    job = request.job
    if job.is_script or job.is_engine:
        what = "a script" if job.is_script else "an engine"
        raise GpuNeeded(f"without a GPU: {what} runs by itself: only targets with a factory can be compiled")
    phases = {"eager": _describe, "compile": _compile, "replay": _replay}
    device = stand_in.install(description.read(Path(request.device)))
    add_import_paths(job)
    try:
        result = phases[request.phase](request, device)
    except (UserCodeError, GpuNeeded):
        if device.decisions.refusals:  # the compiler wraps it into errors of its own
            raise GpuNeeded(device.decisions.refusals[0]) from None
        raise
    if device.decisions.refusals:  # Dynamo cut the graph there and went on
        raise GpuNeeded(device.decisions.refusals[0])
    return result


def _describe(request: PhaseRequest, device: StandIn) -> PhaseResult:
    from .model import AbsentGpuModel

    return PhaseResult(
        request.phase, model=AbsentGpuModel(request.job, device).describe(), fingerprint=detect()
    )


def _compile(request: PhaseRequest, device: StandIn) -> PhaseResult:
    process = CompilingProcess(request)
    result = _call(request, device, lambda result: describe_compiles(result, process.observer))
    helper.build()
    return process.add_capture(replace(result, untimed=tuple(sorted(device.decisions.untimed))))


def _replay(request: PhaseRequest, device: StandIn) -> PhaseResult:
    with RestoringProcess(request) as restoring:
        result = _call(request, device, lambda result: describe_compiles(result, restoring.observer))
    result = restoring.add_files(result)
    helpers = restoring.names_ending(".so")  # nothing here loads a library of the driver's
    result = replace(result, files_required=tuple(sorted({*result.files_required, *helpers})))
    return restoring.add_capture(result)


def _call(
    request: PhaseRequest, device: StandIn, describe: Callable[[PhaseRequest], PhaseResult]
) -> PhaseResult:
    """Call all input sets of the compiled model, and return what was compiled."""
    from ..worker.factory_model import graph_breaks, recompiles
    from .model import AbsentGpuModel

    model = AbsentGpuModel(request.job, device)
    compiled = model.compile()
    model.first_calls(compiled, "the compiled model")
    model.later_calls(compiled, "the compiled model")
    facts = model.describe()
    return replace(describe(request), model=facts, graph_breaks=graph_breaks(), recompiles=recompiles())
