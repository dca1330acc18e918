"""Owns `QuietPublisher`: in mode ``readwrite`` it publishes what this process compiled when nothing compiles.

It works on a thread of its own, so that the service waits for nothing, and it raises nothing. What a service
publishes was not replayed in a fresh process: it has no proof, and goes into the lane of the session
(`publication.as_you_go`). Several processes publish into one entry, so each publication keeps what the head
holds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..hooks import logger
from ..hooks.activity import QUIET_SECONDS
from ..process.events import Listener
from ..wire.errors import CacheSvcError, Forbidden, InvalidRequest, NotWarm, Unauthenticated, Unsupported
from ..wire.text import count_text

if TYPE_CHECKING:
    from ..hooks.activity import Moment
    from ..process.process import Process
    from ..publication.as_you_go import RightToPublish
    from ..restore.request import NameRequest
    from ..wire.names import Name
    from ..wire.requests.protocol import CommitAnswer
    from .session import Session

_log = logging.getLogger("cachesvc")

_AT_ONCE = 10
"""Publications of one process that wait for nothing but a quiet period. Each later one comes at least
``_LATER_SECONDS`` after the one before it, in a process that compiles for ever."""
_LATER_SECONDS = 600.0
_TRY_AGAIN_SECONDS = 60.0
"""Seconds from a publication that failed to the next try; twice as many after each further failure."""
_LONGEST_PAUSE = 3600.0
"""Seconds between two tries, at most."""
_REFUSALS = (Forbidden, InvalidRequest, Unauthenticated, Unsupported)
"""Errors of a publication that the next one meets too, until somebody changes a right or a setting."""
_TARGET = "service"
"""Target under which a service publishes by itself, the same as by a call of ``publish``."""


class _OtherError(Exception):
    """Says which error ended a publication that cachesvc does not know."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")


class QuietPublisher(Listener):
    """Publishes at each quiet period in which something is new."""

    def __init__(self, process: Process, sessions: Sequence[Session]) -> None:
        """``sessions``: those of the process, also those that are added later."""
        self._process, self._sessions = process, sessions
        self._begin()

    def _begin(self) -> None:
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._quiet_activity: object = None
        self._tried_activity: object = None
        """The activity after which this process published last, or tried to."""
        self._failures = 0
        """How many tries in a row have failed."""
        self._published, self._not_before = 0, 0.0
        self._handed_in = False
        """Whether this process has published as a rank of a job."""
        self._said: set[str] = set()
        """The kinds of failures that the log has named since a publication succeeded."""

    def restore_ended(self) -> None:
        """Record beside the work, if this process restored an entry of a lane into which it publishes by
        itself: then the entry's next start does not trace. The ranks of a job publish together, and record
        nothing."""
        from ..ranks.job import this_job

        restored = filter(_restored_own_lane, self._sessions)
        seconds = [one.config.record_seconds for one in restored if one.config is not None]
        if seconds and this_job() is None:
            self._process.all_kinds.start_recording(serving=True, seconds=min(seconds))

    def paused(self, moment: Moment, _deadline: float) -> None:
        """Publish what is new, if a session publishes by itself: on a thread once the process is quiet, which
        returns at once; at the exit before this returns, for which the exit waits as for any listener."""
        if not any(session.right is not None for session in self._sessions):
            return
        if moment == "exit":
            self._publish_at_exit()
        elif moment == "quiet":
            self._publish_when_quiet()
        else:
            from . import entry_publication  # noqa: F401 - Python cannot import every module at the exit

    def _publish_when_quiet(self) -> None:
        self._quiet_activity = self._process.output.activity()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cachesvc-publish", daemon=True)
            self._thread.start()
        self._wake.set()

    def forked(self) -> None:
        """Begin again in a forked child, where no thread publishes."""
        self._begin()

    def _publish_at_exit(self) -> None:
        """Publish what no quiet period came for, such as that of a program which answers once and ends. A job
        publishes together, and does not end at once."""
        from ..ranks.job import this_job

        output = self._process.output
        if output.activity() in (None, self._tried_activity) or this_job() is not None:
            return
        is_clean = output.observer is None or output.observer.snapshot().clean
        if is_clean and not self._process.all_kinds.records():
            return
        for session in tuple(self._sessions):
            self._publish_session(session)

    def _run(self) -> None:
        """Publish at each quiet period, as long as the process lives: what failed is tried again."""
        while True:
            try:
                self._await_quiet()
                self._tried_activity = self._quiet_activity
                done = [self._publish_session(session) for session in tuple(self._sessions)]
                self._failures = 0 if all(done) else self._failures + 1
            except Exception as error:  # noqa: BLE001 - as in `_publish_name`
                self._warn("publication", _OtherError(error))
                self._failures += 1
                time.sleep(self._pause() or 0.0)

    def _pause(self) -> float | None:
        """Return the seconds to the next try where nothing new is compiled; ``None`` if nothing failed."""
        if not self._failures:
            return None
        return min(_LONGEST_PAUSE, _TRY_AGAIN_SECONDS * 2.0 ** min(self._failures - 1, 16))

    def _await_quiet(self) -> None:
        """Wait until nothing has compiled for the configured seconds, or until it is time to try again."""
        while True:
            if not self._wake.wait(self._pause()):
                self._quiet_activity = self._process.output.activity()
            self._wake.clear()
            configs = [session.config for session in self._sessions if session.right is not None]
            seconds = max((config.publish_after for config in configs if config is not None), default=0.0)
            activity = self._quiet_activity
            time.sleep(max(0.0, seconds - QUIET_SECONDS, self._not_before - time.monotonic()))
            if activity == self._process.output.activity():
                return

    def _publish_session(self, session: Session) -> bool:
        """Publish each name of a session, unless it may not; return whether there is nothing to try again.
        The claims of what is not published end."""
        right = session.right
        if right is None:
            return True
        try:
            if right.ask():
                done = [self._publish_name(session, right, request) for request in session.requests]
                return all(done)
            if not right.refused:
                self._warn(session.label, "the registry does not say what the token may do")
            return False
        finally:
            for claim in session.claims.values():
                claim.release()

    def _warn(self, label: str, why: object) -> None:
        """Say why something was not published, once for each kind of failure."""
        text = "%s: not published, it is tried again: %s"
        kind = f"{label} {type(why).__name__}"
        logger.write(logging.DEBUG if kind in self._said else logging.WARNING, text, label, why)
        self._said.add(kind)

    def _publish_name(self, session: Session, right: RightToPublish, request: NameRequest) -> bool:
        """Publish what is new under a name; return whether there is nothing to try again."""
        name, begin = request.name, time.monotonic()
        try:
            published = self._publish(session, request)
        except NotWarm as error:
            _log.debug("%s: %s", name, error)
        except _REFUSALS as error:
            right.refuse(error)
            return False
        except Exception as error:  # noqa: BLE001 - publishing is never the reason that a service fails
            self._warn(str(name), error if isinstance(error, CacheSvcError) else _OtherError(error))
            return False
        else:
            if published is not None:
                self._said.clear()
                self._published += 1
                if self._published >= _AT_ONCE:
                    self._not_before = time.monotonic() + _LATER_SECONDS
                self._say(session, name, published, time.monotonic() - begin)
        return True

    def _say(self, session: Session, name: Name, published: tuple[CommitAnswer, int], seconds: float) -> None:
        answer, files = published
        assert session.config is not None
        recorded = self._process.all_kinds.recorded()
        logger.write(
            logging.INFO,
            "%s: published into the lane %s: %s, in %.2f s%s",
            name,
            session.config.lane,
            count_text(files, "file"),
            seconds,
            f", with {count_text(recorded, 'recorded frame')}" if recorded else "",
            facts={
                "event": "published",
                "names": [str(name)],
                "revisions": [str(answer.revision)],
                "files": files,
                "recorded": recorded,
                "seconds": round(seconds, 3),
            },
        )

    def _publish(self, session: Session, request: NameRequest) -> tuple[CommitAnswer, int] | None:
        """Publish what is new under a name; return ``None`` if nothing is, else also how many files."""
        from ..ranks.job import this_job
        from .entry_publication import (
            draft_of,
            publish_beside_head,
            publish_with_ranks,
            publisher_key,
            selected,
        )

        config, name, job = session.config, request.name, this_job()
        assert config is not None and session.restoring is not None
        draft = draft_of(config, name, _TARGET)
        if job is not None:
            # Ranks publish together, and do not compile equally often: one publication, where all compiled.
            if self._handed_in or session.has_revisions:
                return None
            answer = publish_with_ranks(self._sessions, config, draft, job, occasion="quiet")
            self._handed_in = True
            return answer, len(self._process.files.known_files())
        key = publisher_key(config)
        selection = self._process.files.own_files(key.public, draft.lane)
        files, new = selected(draft, selection), self._process.files.new_places(name, selection.files)
        if not new:
            return None
        return publish_beside_head(
            self._sessions, config, key, files, draft, session.restoring, request, new=new
        )


def _restored_own_lane(session: Session) -> bool:
    """Return whether a session has installed a revision of the lane into which it publishes by itself."""
    config, result = session.config, session.result
    if session.right is None or config is None or result is None:
        return False
    return any(one.manifest.statement.lane == config.lane for one in result.installed)
