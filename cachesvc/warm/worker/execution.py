"""Execute a target in this process: call its model with all input sets, or run its script; for `worker`.

Imports torch only for a model, once the client's hooks are in place.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachesvc_client.environment.detect import detect
from cachesvc_client.hooks import counters
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest

from ..spec.plan import Job
from .phase import PhaseRequest, PhaseResult, Times
from .user_code import UserCodeError, add_import_paths, one_line

if TYPE_CHECKING:
    from .factory_model import FactoryModel


@dataclass(frozen=True, slots=True)
class Execution:
    """Holds the result of an execution with the model and its compiled form; a script has neither."""

    result: PhaseResult
    model: FactoryModel | None = None
    compiled: Callable[..., Any] | None = None


def build_model(job: Job) -> FactoryModel:
    """Build the model of a job. Raises ``UserCodeError``."""
    from .factory_model import FactoryModel

    add_import_paths(job)
    return FactoryModel(job)


def execute(request: PhaseRequest, observer: counters.Observer) -> Execution:
    """Call all input sets, or run the script, and take the counts right after. Raises ``UserCodeError``."""
    if request.job.is_script:
        seconds = _run_script(request.job)
        return Execution(replace(describe_compiles(request, observer), times={"script": Times(seconds)}))
    from . import factory_model

    model = build_model(request.job)
    compiled = model.compile()
    times = model.first_calls(compiled, "the compiled model")
    model.later_calls(compiled, "the compiled model")
    result = replace(
        describe_compiles(request, observer),
        model=model.describe(),
        times=times,
        graph_breaks=factory_model.graph_breaks(),
        recompiles=factory_model.recompiles(),
    )
    return Execution(result, model, compiled)


def describe_compiles(request: PhaseRequest, observer: counters.Observer) -> PhaseResult:
    """Return a result with what this process compiled until now, and where: counts, environment, graphs."""
    from cachesvc_client.process.process import process

    here = detect()
    return PhaseResult(
        request.phase,
        observation=observer.snapshot(),
        fingerprint=here if request.ranks else process().output.built_for(here),
        beyond_level=process().output.beyond_level() if request.job.level else "",
        scopes=process().output.scopes(),
        graph_requests=process().output.asked.facts(),
    )


def _run_script(job: Job) -> float:
    """Run the whole program as ``python script args`` does, and return the seconds that it took.

    Raises ``UserCodeError`` if the program fails.
    """
    add_import_paths(job)
    script = Path(job.spec.script)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *job.spec.args]
    begin = time.perf_counter()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise UserCodeError(f"{script.name} ended with status {error.code}") from None
    except Exception as error:
        raise UserCodeError(f"{script.name} raised {one_line(error)}") from error
    return time.perf_counter() - begin


def script_digest(job: Job) -> Digest:
    """Return the identity of a script target, which has no model hash.

    It is a digest of the script's bytes, the job's options, and the digests of the files that the spec
    declares, by their names.
    """
    files = {Path(name).name: Digest.of(Path(name).read_bytes()) for name in job.spec.files}
    script = Digest.of(Path(job.spec.script).read_bytes())
    return Digest.of(canonical({"script": script, "spec": job.options, "inputs": files}))
