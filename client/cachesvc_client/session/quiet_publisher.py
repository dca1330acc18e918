"""Owns `QuietPublisher`: in mode ``readwrite`` it publishes what this process compiled when nothing compiles.

It works on a thread of its own, so that the service waits for nothing, and it raises nothing. What a service
publishes was not replayed in a fresh process: it has no proof, and goes into the lane of the session
(`publication.as_you_go`). Several processes publish into one entry, so each publication keeps what the head
holds.
"""

from __future__ import annotations

import functools
import logging
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..hooks import logger
from ..hooks.activity import QUIET_SECONDS
from ..wire.errors import CacheSvcError, Forbidden, InvalidRequest, NotWarm, Unauthenticated, Unsupported
from ..wire.text import count_text

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..bundle.seal import PublicKey
    from ..node.installed import StagedRevision
    from ..publication.as_you_go import RightToPublish
    from ..restore.plan import NameRequest
    from ..wire.names import Lane, Name
    from ..wire.protocol import CommitAnswer
    from .process import Process
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
_MOST_JOINED_BYTES = 1 << 30
"""Bytes of all files of a revision up to which those of the head are kept; above it the entry starts anew."""
_REFUSALS = (Forbidden, InvalidRequest, Unauthenticated, Unsupported)
"""Errors of a publication that the next one meets too, until somebody changes a right or a setting."""
_TARGET = "service"
"""Target under which a service publishes by itself, the same as by a call of ``publish``."""


class _OtherError(Exception):
    """Says which error ended a publication that cachesvc does not know."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")


class QuietPublisher:
    """Publishes at each quiet period in which something is new."""

    def __init__(self, process: Process, sessions: Sequence[Session]) -> None:
        """``sessions``: those of the process, also those that are added later."""
        self._process, self._sessions = process, sessions
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._quiet_activity: object = None
        self._failures = 0
        """How many tries in a row have failed."""
        self._published, self._not_before = 0, 0.0
        self._handed_in = False
        """Whether this process has published as a rank of a job."""
        self._said: set[str] = set()
        """The kinds of failures that the log has named since a publication succeeded."""

    def notice_quiet(self) -> None:
        """Publish on a thread what is new, if the process stays quiet. Returns at once."""
        self._quiet_activity = self._process.activity()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cachesvc-publish", daemon=True)
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        """Publish at each quiet period, as long as the process lives: what failed is tried again."""
        while True:
            try:
                self._await_quiet()
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
                self._quiet_activity = self._process.activity()
            self._wake.clear()
            configs = [session.config for session in self._sessions if session.right is not None]
            seconds = max((config.publish_after for config in configs if config is not None), default=0.0)
            activity = self._quiet_activity
            time.sleep(max(0.0, seconds - QUIET_SECONDS, self._not_before - time.monotonic()))
            if activity == self._process.activity():
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

    @staticmethod
    def _say(session: Session, name: Name, published: tuple[CommitAnswer, int], seconds: float) -> None:
        answer, files = published
        assert session.config is not None
        logger.write(
            logging.INFO,
            "%s: published into the lane %s: %s, in %.2f s",
            name,
            session.config.lane,
            count_text(files, "file"),
            seconds,
            facts={
                "event": "published",
                "names": [str(name)],
                "revisions": [str(answer.revision)],
                "files": files,
                "seconds": round(seconds, 3),
            },
        )

    def _publish(self, session: Session, request: NameRequest) -> tuple[CommitAnswer, int] | None:
        """Publish what is new under a name; return ``None`` if nothing is, else also how many files."""
        from ..ranks.job import this_job
        from ..wire.ancestors import in_order, line_of
        from .publish import draft_of, is_of_entry, publish_files, publish_with_ranks, publisher_key, selected

        config, name, job = session.config, request.name, this_job()
        assert config is not None and session.restoring is not None
        draft = draft_of(config, name, _TARGET)
        if job is not None:
            # Ranks publish together, and do not compile equally often: one publication, where all compiled.
            if self._handed_in or session.has_revisions:
                return None
            answer = publish_with_ranks(config, draft, job, occasion="quiet")
            self._handed_in = True
            return answer, len(self._process.known_files())
        key = publisher_key(config)
        selection = self._process.own_files(key.public, draft.lane)
        files, new = selected(draft, selection), self._process.new_places(name, selection.files)
        if not new:
            return None
        with tempfile.TemporaryDirectory(prefix="cachesvc-") as folder:
            head = session.restoring.fetch_head(request, functools.partial(is_of_entry, draft))
            if head is not None and new <= {(file.kind, file.path) for file in head[0].manifest.files}:
                self._process.note_published(name, files)
                return None  # another process of the fleet has published the same
            joined: Sequence[SourceFile] = files
            if head is not None and is_own_head(head[0], key.public, draft.lane):
                joined = join_head(head[0], head[1], files, Path(folder))
                if joined is not files:
                    draft = replace(draft, ancestors=in_order((*draft.ancestors, *line_of(head[0]))))
            return publish_files(config, key, joined, draft, quick=True), len(joined)


def is_own_head(head: StagedRevision, signer: PublicKey, lane: Lane | None) -> bool:
    """Return whether a signer may sign the files of the entry's head again: it has signed them for the lane.

    Those of others are not kept: their signer may be revoked, and they would stay under this one's signature.
    """
    if (head.signer, head.manifest.statement.lane) == (signer, lane):
        return True
    text = "%s: the revision there is by key %s, and its files are left out"
    _log.info(text, head.manifest.statement.full_name, head.signer.short)
    return False


def join_head(
    head: StagedRevision, pack: Path, files: Sequence[SourceFile], folder: Path
) -> Sequence[SourceFile]:
    """Return ``files`` and those of the entry's head, each place once; ``files`` alone if all are too large.

    ``pack``: the head's pack. ``folder``: where the head's files are written. Raises ``Corrupt``.
    """
    from ..bundle.pack import PackReader, SourceFile
    from ..kinds import rule_of
    from ..ranks.join_files import join_captures

    if sum(record.size for record in head.manifest.files) > _MOST_JOINED_BYTES:
        return files
    kept = []
    with PackReader(pack, head.manifest) as reader:
        for number, record in enumerate(head.manifest.files):
            path = folder / str(number)
            with open(path, "wb") as out:
                for chunk in reader.chunks(record):
                    out.write(chunk)
            kept.append(SourceFile(record.kind, record.path, path, record.mode))
    joined = join_captures({0: files, 1: kept}, rule_of)
    return [replace(file, ranks=()) for file in joined]
