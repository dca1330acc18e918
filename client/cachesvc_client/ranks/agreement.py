"""Brings the ranks of a job to agree about one attempt of one session: all of them install, or none does.

Some distributed options communicate inside the compile: a job can hang if some of its ranks hit and others
miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..wire.errors import CacheSvcError, Incompatible, StorageFull, Unavailable
from .job import may_become_rank, misfit, this_job

if TYPE_CHECKING:
    from ..node.store import NodeStore
    from ..trust.accept import Accepted
    from .deadline import Deadline
    from .job import Job
    from .votes import Vote


class Agreement:
    """Agrees with the other ranks about one attempt. ``about``: what distinguishes this attempt from the
    others of the job; it is the same in each rank.

    A process alone agrees with itself. Only the session's own thread calls these methods.
    """

    def __init__(self, about: Callable[[], Sequence[object]], deadline: Deadline) -> None:
        self._about, self._deadline = about, deadline
        self._voted = False

    def reach(
        self, revisions: Sequence[Accepted], store: NodeStore, failures: Sequence[CacheSvcError]
    ) -> int | None:
        """Agree to install revisions, if all ranks on this node can do the same; else none of them installs.
        Return this process's rank, or ``None`` for a process alone.

        ``store``: the node store, which the ranks of a node share. ``failures``: why this process lacks
        revisions. Raise ``Unavailable`` or ``Incompatible`` if the ranks do not agree.
        """
        job = self.job()
        if job is None:
            return None
        # A revision that all ranks lack alike does not keep them from installing the others.
        problem = str(failures[0]) if failures and not revisions else ""
        self._agree(job, store, revisions, problem)
        return job.rank

    def job(self) -> Job | None:
        """Returns the job once it is certain: some workers learn their rank later, but before they
        compile."""
        while this_job() is None and may_become_rank() and not self._deadline.pause_unawaited():
            pass
        return this_job()

    def withdraw(self, error: CacheSvcError, store: Path | None) -> None:
        """Tells the other ranks that the restore failed before this rank voted, so that none of them waits.
        ``store``: the node store's folder, if it is not the default one. Never raises a ``CacheSvcError``."""
        job = this_job()
        if job is not None and not self._voted:
            from ..node.store import NodeStore
            from ..node.store_root import store_root

            with suppress(CacheSvcError, OSError):
                self._vote(job, NodeStore(store_root(store)), (), str(error))

    def _agree(self, job: Job, store: NodeStore, staged: Sequence[Accepted], problem: str) -> None:
        """Votes and waits on this thread for the others, at most until a compile has waited as long as it
        may. Raises ``Unavailable`` or ``Incompatible`` if they do not agree."""
        from .votes import wait_for

        misfits = [text for revision in staged if (text := misfit(revision.manifest, job))]
        try:
            vote = self._vote(job, store, staged, problem or (misfits[0] if misfits else ""))
            if misfits:
                raise Incompatible(misfits[0], f"warm with {job.world} ranks")
            if vote is None or problem:
                return
            outcome = wait_for(vote, time_is_up=self._deadline.agreed_too_late, pause=self._deadline.pause)
        except OSError as error:
            raise StorageFull(f"node store {store.root}: {error.strerror or error}") from error
        if not outcome.agreed:
            raise Unavailable(f"the ranks of this job install all or nothing: {outcome.why}")

    def _vote(self, job: Job, store: NodeStore, staged: Sequence[Accepted], problem: str) -> Vote | None:
        """Votes and returns the vote; ``None`` where it is not known which ranks are on this node.

        Raises ``StorageFull``.
        """
        from ..wire.codec import canonical
        from ..wire.digest import Digest
        from .votes import Vote

        self._voted = True
        if not job.here:
            return None
        key = Digest.of(canonical([job.key, *self._about()]))
        vote = Vote(store.job(key), job.local, job.here)
        vote.vote(sorted(str(one.revision) for one in staged), problem)
        return vote
