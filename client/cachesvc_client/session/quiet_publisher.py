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
from ..wire.errors import CacheSvcError, NotWarm
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

MOST_ATTEMPTS = 10
"""Publications that one process tries by itself, at most, also if it compiles for ever."""
_TRY_AGAIN_SECONDS = 60.0
"""Seconds from a publication that a registry could not take to the next try."""
_MOST_JOINED_BYTES = 1 << 30
"""Bytes of all files of a revision up to which those of the head are kept; above it the entry starts anew."""
_TARGET = "service"
"""Target under which a service publishes by itself, the same as by a call of ``publish``."""


class QuietPublisher:
    """Publishes at each quiet period in which something is new."""

    def __init__(self, process: Process, sessions: Sequence[Session]) -> None:
        """``sessions``: those of the process, also those that are added later."""
        self._process, self._sessions = process, sessions
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._quiet_activity: object = None
        self._attempts = 0
        self._unreachable = False
        """Whether the registry did not answer at the last try."""
        self._warned = False

    def notice_quiet(self) -> None:
        """Publish on a thread what is new, if the process stays quiet. Returns at once."""
        self._quiet_activity = self._process.activity()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cachesvc-publish", daemon=True)
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        try:
            while self._attempts < MOST_ATTEMPTS:
                self._await_quiet()
                self._unreachable = False
                for session in tuple(self._sessions):
                    self._publish_session(session)
            _log.info("publishes no more by itself: %d publications were tried", self._attempts)
        except Exception:  # noqa: BLE001 - publishing is never the reason that a service fails
            _log.debug("publishes no more by itself", exc_info=True)

    def _await_quiet(self) -> None:
        """Wait until nothing has compiled for the configured seconds, or until it is time to try again."""
        while True:
            if not self._wake.wait(_TRY_AGAIN_SECONDS if self._unreachable else None):
                self._quiet_activity = self._process.activity()
            self._wake.clear()
            configs = [session.config for session in self._sessions if session.right is not None]
            seconds = max((config.publish_after for config in configs if config is not None), default=0.0)
            activity = self._quiet_activity
            time.sleep(max(0.0, seconds - QUIET_SECONDS))
            if activity == self._process.activity():
                return

    def _publish_session(self, session: Session) -> None:
        """Publish each name of a session, unless it may not; the claims of what is not published end."""
        right = session.right
        if right is None or right.refused:
            return
        try:
            if right.ask():
                for request in session.requests:
                    self._publish_name(session, right, request)
            elif not right.refused:
                self._attempts += 1
                self._try_again(session.label, "it does not say what the token may do")
        finally:
            for claim in session.claims.values():
                claim.release()

    def _try_again(self, label: str, why: object) -> None:
        self._unreachable = True
        if not self._warned:
            text = "%s: not published, the registry is asked again every %.0f s: %s"
            logger.write(logging.WARNING, text, label, _TRY_AGAIN_SECONDS, why)
        self._warned = True

    def _publish_name(self, session: Session, right: RightToPublish, request: NameRequest) -> None:
        name, begin = request.name, time.monotonic()
        try:
            published = self._publish(session, request)
        except NotWarm as error:
            _log.debug("%s: %s", name, error)
        except CacheSvcError as error:
            if error.retry:
                self._try_again(str(name), error)
            else:
                right.refuse(error)
        else:
            if published is not None:
                self._say(session, name, published, time.monotonic() - begin)

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
            if self._attempts or session.has_revisions:
                return None
            self._attempts += 1
            answer = publish_with_ranks(config, draft, job, occasion="quiet")
            return answer, len(self._process.known_files())
        key = publisher_key(config)
        selection = self._process.own_files(key.public, draft.lane)
        files, new = selected(draft, selection), self._process.new_places(name, selection.files)
        if not new:
            return None
        self._attempts += 1
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
