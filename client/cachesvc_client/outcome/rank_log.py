"""Logs one line about all ranks of a job on one node, as soon as the last of them knows its outcome."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ..hooks import logger
from ..node.store import NodeStore
from ..node.store_root import store_root
from ..ranks.job import Job
from ..ranks.job_folder import process_id
from ..ranks.outcomes import RankOutcome, exchange, first_to_say, line
from ..wire.codec import canonical
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError
from .judge import Report


def say_of_ranks(report: Report, job: Job, names: str, store: Path | None) -> None:
    """Leave this rank's outcome for the others, and log that of all, if it is known and no one has said it.

    Says nothing where no rank restored anything. ``names``: those that were asked for. ``store``: the node
    store's folder, if it is not the default one. Never raises an error of the file system.
    """
    if not job.one_node:
        return
    observed = report.observed
    own = RankOutcome(
        job.rank,
        process_id(os.getpid()),
        report.state,
        len(report.revisions),
        observed.compilations,
        observed.tuning_runs,
        observed.compiler_processes,
        report.reasons[0] if report.reasons else "",
    )
    with suppress(CacheSvcError, OSError):
        folder = NodeStore(store_root(store)).job(Digest.of(canonical([job.key, "outcome"])))
        outcomes = exchange(folder, job, own)
        if any(outcome.restored for outcome in outcomes) and first_to_say(folder, outcomes):
            hit = all(outcome.state == "hit" for outcome in outcomes)
            facts = {"event": "ranks", "names": names.split(", "), "ranks": [asdict(one) for one in outcomes]}
            logger.write(
                logging.INFO if hit else logging.WARNING, "%s: %s", names, line(outcomes), facts=facts
            )
