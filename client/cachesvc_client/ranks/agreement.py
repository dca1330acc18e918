"""The ranks of a job install all or nothing: their agreement about one attempt of one session.

Some distributed options communicate inside the compile: ranks of which some hit and some miss can hang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..wire.errors import CacheSvcError, Incompatible, StorageFull, Unavailable
from .job import may_become_rank, misfit, this_job

if TYPE_CHECKING:
    from ..node.installed import StagedRevision
    from ..node.store import NodeStore
    from ..restore.plan import RestoreContext
    from ..session.deadline import Deadline
    from .job import Job
    from .votes import Vote


class Agreement:
    """``about``: what tells this attempt from the others of the job, the same in each of its ranks.

    A process alone agrees with itself. Everything here is for the session's own thread.
    """

    def __init__(self, about: Callable[[], Sequence[object]], deadline: Deadline) -> None:
        self._about, self._deadline = about, deadline
        self._voted = False

    def reach(self, means: RestoreContext, failures: Sequence[CacheSvcError]) -> int | None:
        """Agrees to install what was put on this node: if all ranks on it can do the same, else none of them
        does. Answers this process's rank, or ``None`` for a process alone. ``failures``: what this process
        lacks. Raises ``Unavailable`` or ``Incompatible`` if the ranks do not agree.
        """
        job = self.job() if means.ahead else None
        if job is None:
            return None
        # What all ranks lack alike keeps none of them from the rest.
        nothing = str(failures[0]) if failures and not means.revisions else ""
        self._agree(job, means.store, means.revisions, nothing)
        return job.rank

    def job(self) -> Job | None:
        """The job, once it is certain: some workers are told their rank later, but before they compile."""
        while this_job() is None and may_become_rank() and not self._deadline.pause_unawaited():
            pass
        return this_job()

    def withdraw(self, error: CacheSvcError, store: Path | None) -> None:
        """Tells the other ranks of a restore that failed before it came to a vote, so that none waits.
        ``store``: the node store's folder, if it is not the default one. Never raises a ``CacheSvcError``."""
        job = this_job()
        if job is not None and not self._voted:
            from ..node.store import NodeStore, default_root

            with suppress(CacheSvcError, OSError):
                self._vote(job, NodeStore(store or default_root()), (), str(error))

    def _agree(self, job: Job, store: NodeStore, held: Sequence[StagedRevision], problem: str) -> None:
        """Votes and waits for the others: on this thread, and at most until a compile has waited its share.
        Raises ``Unavailable`` or ``Incompatible`` if they do not agree."""
        from .votes import wait_for

        misfits = [text for one in held if (text := misfit(one.manifest, job))]
        try:
            round_ = self._vote(job, store, held, problem or (misfits[0] if misfits else ""))
            if misfits:
                raise Incompatible(misfits[0], f"warm with {job.world} ranks")
            if round_ is None or problem:
                return
            outcome = wait_for(round_, self._deadline.agreed_too_late, self._deadline.pause)
        except OSError as error:
            raise StorageFull(f"node store {store.root}: {error.strerror or error}") from error
        if not outcome.agreed:
            raise Unavailable(f"the ranks of this job install all or nothing: {outcome.why}")

    def _vote(self, job: Job, store: NodeStore, held: Sequence[StagedRevision], problem: str) -> Vote | None:
        """``None`` where it is not known who else is on this node. Raises ``StorageFull``."""
        from ..wire.codec import canonical
        from ..wire.digest import Digest
        from .votes import Vote

        self._voted = True
        if not job.here:
            return None
        key = Digest.of(canonical([job.key, *self._about()]))
        round_ = Vote(store.job(key), job.local, job.here)
        round_.vote(sorted(str(one.revision) for one in held), problem)
        return round_
