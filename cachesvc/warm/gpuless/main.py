"""Do one phase of a job for an absent GPU, in a fresh process: ``python -m cachesvc.warm.gpuless.main REQUEST
RESULT``."""

from __future__ import annotations

from ..worker import main as worker
from . import phases

if __name__ == "__main__":
    worker.run_to_the_end(lambda arguments: worker.main(arguments, phases.perform))
