"""Owns the agent's loop: round after round, slower while the registry does not answer, until it is told to
end."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc_client.wire.errors import CacheSvcError

from .measures import Measures
from .pages import serve_pages
from .peers.options import PeerOptions
from .peers.peers import Peers
from .peers.server import serve_packs
from .round import Keeper, Selection

if TYPE_CHECKING:
    from cachesvc_client.config.settings import Config

_log = logging.getLogger("cachesvc")
MAX_PAUSE_SECONDS = 60.0
"""Longest pause after failures, unless the interval is longer."""
_STEP_SECONDS = 30.0
"""Seconds after which a pause is noted as a step of the loop."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Says how an agent works. ``root``: its store. ``interval``: seconds between two rounds. ``host`` and
    ``port``: where health and metrics are; port 0 is any free one. ``once``: one round, and no pages.
    ``max_bytes``: of packs; ``None``: as `max_store_bytes` says. ``peers``: where packs are exchanged with
    other agents; ``None``: nowhere."""

    root: Path
    selection: Selection
    max_bytes: int | None
    interval: float = 30.0
    host: str = "127.0.0.1"
    port: int = 8751
    once: bool = False
    peers: PeerOptions | None = None


class Terminated(BaseException):
    """Ends the agent, wherever it is: it may be killed at any step."""


def run_agent(config: Config, options: AgentOptions) -> None:
    """Keeps the store until SIGTERM or SIGINT; with ``once``, for one round.

    Raises ``InvalidRequest`` if another agent holds the store or the port, ``StorageFull`` and ``Untrusted``
    for a store that cannot be used, and with ``once`` what the round raises.
    """
    os.umask(0o022)  # services of other users read what is made here
    store = SharedStoreWriter(options.root, options.max_bytes)
    measures = Measures()
    peers = Peers(options.peers, store, measures) if options.peers else None
    keeper = Keeper(config, options.selection, store, measures, peers)
    with store.held(), _terminable():
        if options.once:
            keeper.round()
            return
        measures.ready = any(True for _ in store.trust_folder.parent.joinpath("lists").iterdir())
        with (
            contextlib.suppress(Terminated),
            serve_pages(measures, options.host, options.port) as port,
            _packs_given(peers, options.peers, measures),
        ):
            _log.info("the node's store %s: health and metrics on %s:%d", options.root, options.host, port)
            _loop(keeper, measures, options.interval)
    _log.info("the node's store %s: the agent has ended", options.root)


@contextlib.contextmanager
def _packs_given(peers: Peers | None, options: PeerOptions | None, measures: Measures) -> Iterator[None]:
    """Gives packs to other agents for the length of the block, if the operator says so."""
    if peers is None or options is None:
        yield
        return
    with serve_packs(peers.shelf, options, measures):
        _log.info(
            "packs are given to agents of %s at %s:%d", options.network_text, options.address, options.port
        )
        yield


def pause_after(failures: int, interval: float, chance: float) -> float:
    """Returns the seconds until the next round. ``failures``: rounds that failed one after the other.
    ``chance``: 0 to 1; agents of many nodes do not ask at one moment."""
    if failures == 0:
        return interval * (0.9 + 0.2 * chance)
    longest = max(MAX_PAUSE_SECONDS, interval)
    return min(longest, 2.0 ** min(failures, 12)) * (0.5 + 0.5 * chance)


def _loop(keeper: Keeper, measures: Measures, interval: float) -> None:
    failures = 0
    while True:
        measures.step()
        try:
            keeper.round()
        except CacheSvcError as error:
            failures += 1
            measures.add("rounds_total", label=error.code)
            _log.warning("the node's store is not brought up to date (%d times now): %s", failures, error)
        except Exception:  # noqa: BLE001 -- an agent that ends leaves the node to grow cold
            failures += 1
            measures.add("rounds_total", label="internal")
            _log.exception("the node's store is not brought up to date (%d times now)", failures)
        else:
            failures = 0
            measures.add("rounds_total", label="done")
            measures.ready = True
        measures.set(failures=failures)
        gc.collect()
        _sleep(pause_after(failures, interval, random.random()), measures)


def _sleep(seconds: float, measures: Measures) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _STEP_SECONDS))
        measures.step()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turns SIGTERM and SIGINT into `Terminated` on this thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = {each: signal.signal(each, terminate) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Terminated:
        pass
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
