"""What the thread of a session restores: each of its wishes, and what was missed once more, in turn.

It never imports torch. `restore` knows one wish; here are all of them, the bundle files instead, and which
failure counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import kinds
from .ranks import may_become_rank, this_job
from .restore import Means, Restored, Wish, restore, restore_files
from .wire.errors import CacheSvcError, Incompatible, InvalidRequest, NotFound

if TYPE_CHECKING:
    from .agreement import Agreement
    from .claiming import Turns
    from .config import Config
    from .http.registry import Remote
    from .process import Process
    from .wire.digest import Digest


def wishes(config: Config, model: Digest | None) -> tuple[Wish, ...]:
    """What a registry is asked for. Raises ``InvalidRequest`` where nothing says what, or whom."""
    if config.mode == "off" or config.bundle is not None:
        return ()
    if not config.names:
        raise InvalidRequest("attach: no name", "give one, or set CACHESVC_NAME or CACHESVC_BUNDLE")
    if not config.url:
        raise InvalidRequest("attach: no registry", "run cachesvc login, or set CACHESVC_URL")
    return tuple(Wish(name, config.tag_fallback, config.lane, model) for name in config.names)


class Restoring:
    """The restores of one session. ``missed``: what nothing fits, and this process may publish."""

    def __init__(
        self, config: Config, process: Process, restored: Restored, may_install: Callable[[], bool]
    ) -> None:
        """``restored`` is filled. ``may_install``: see `restore.Means`. Raises as `Process.prepare` does."""
        store, fingerprint = process.prepare(config, restored)
        self.missed: tuple[Wish, ...] = ()
        self._config, self._restored = config, restored
        self._means = Means(
            store=store,
            trusted=config.trusted_keys,
            fingerprint=fingerprint,
            rules=kinds.RULES,
            roots=process.folders.roots,
            may_install=may_install,
            held=[] if this_job() is not None or may_become_rank() else None,
        )

    def restore(self, wanted: Iterable[Wish], agreement: Agreement) -> None:
        """The configuration's bundle files if it names some, else what is ``wanted``. Raises
        ``CacheSvcError``: the first wish's that failed, when all were tried."""
        if self._config.bundle is not None:
            restore_files(_bundles(self._config.bundle), self._means, self._restored)
            agreement.install(self._means, [])
            return
        self._restore_each(wanted, restore, self._means, agreement)

    def restore_in_turn(self, turns: Turns, agreement: Agreement) -> None:
        """What was missed, once more: another process may compile and publish it while this one waits.
        Raises as `restore` does."""
        means = replace(self._means, held=None if self._means.held is None else [])
        self._restore_each(self.missed, turns.restore, means, agreement)

    def _restore_each(
        self,
        wanted: Iterable[Wish],
        restore_one: Callable[[Wish, Remote, Means, Restored], None],
        means: Means,
        agreement: Agreement,
    ) -> None:
        from .http.registry import Remote

        config = self._config
        failures: list[CacheSvcError] = []
        missed: list[Wish] = []
        # Half of what the compile waits, so that a hung registry leaves time for the node's last answer.
        seconds = min(10.0, max(0.2, config.deadline / 2))
        with Remote(config.url or "", config.token, timeout=seconds) as remote:
            for wish in wanted:
                try:
                    restore_one(wish, remote, means, self._restored)
                except CacheSvcError as error:
                    failures.append(error)
                    if isinstance(error, (NotFound, Incompatible)):
                        missed.append(wish)
            agreement.install(means, failures)
        if config.mode == "readwrite" and config.token:
            self.missed = tuple(missed)
        if failures:
            raise failures[0]


def _bundles(path: Path) -> list[Path]:
    if not path.exists():
        raise InvalidRequest(f"{path}: no such bundle file or folder")
    return sorted(path.glob("*.cachesvc")) if path.is_dir() else [path]
