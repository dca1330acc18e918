"""Prove an environment once, before any target: run the conformance probe in a fresh process, and keep that
it passed. A probe that failed is not kept, so the next run tries again.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from cachesvc_client.config.settings import Config
from cachesvc_client.wire.errors import Unsupported
from cachesvc_client.wire.factors import Fingerprint

from .launcher import Launcher
from .spec.plan import Job
from .worker.phase import PhaseRequest
from .worker.proven_environment import ProvenEnvironment, has_passed, keep_passed

_QUICK = {
    "TORCHINDUCTOR_VEC_ISA_OK": "0",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
"""Variables that halve the time of the probe: it checks no instruction of the CPU."""
_PROBE_SECONDS = 600.0
"""Seconds that the probe may take."""


def prove_environment(environment: ProvenEnvironment, job: Job, launcher: Launcher, config: Config) -> None:
    """Return once the conformance probe has passed in this environment, now or in an earlier run.

    ``job``: names the processes' limits; nothing of it runs. Raises ``Unsupported`` with the check that
    failed; ``Cancelled``.
    """
    if not has_passed(environment.fingerprint, config):
        _run_probe(job, launcher, environment.fingerprint)
        keep_passed(environment.fingerprint, config)


def _run_probe(job: Job, launcher: Launcher, fingerprint: Fingerprint) -> None:
    spec = replace(job.spec, env={}, pass_env=(), cwd="", nproc=1, timeout=_PROBE_SECONDS)
    request = PhaseRequest("probe", replace(job, spec=spec))
    with tempfile.TemporaryDirectory(prefix="cachesvc-probe-") as folder:
        result = launcher.run(request, Path(folder), _QUICK)
    failed = [result.error] if result.error else [f"{name}: {why}" for name, why in result.probe.items()]
    if failed:
        torch = fingerprint["torch"]
        raise Unsupported(
            f"torch {torch}: nothing is published, since the conformance probe failed: {'; '.join(failed)}"
        )
