"""Several collectors at once: each replica's, a CronJob's, an operator's."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from registry_inside import START, Clock, Column, inside
from registry_making import Server, make, ok

from cachesvc.registry import gc
from cachesvc_client.bundle.seal import SigningKey

COLLECTORS = 4
KEY = SigningKey.generate()


def test_collectors_at_once_do_the_work_of_one(tmp_path: Path, column: Column) -> None:
    """Nothing fails, what counts stays, and what does not is gone, when all of them are done."""
    clock = Clock()
    with inside(tmp_path, KEY, clock, column=column) as reg:
        heads = []
        for entry in range(6):
            head = None
            for number in range(5):
                made = make(
                    KEY,
                    target=f"t{entry}",
                    sequence=(START + number) * 1000,
                    content=b"%d.%d" % (entry, number) * 50,
                )
                head = reg.publish(made, head).revision
            heads.append((head, made.pack))
        clock.now += 2 * 86_400

        def together() -> list[gc.Collected]:
            with ThreadPoolExecutor(COLLECTORS) as pool:
                running = [pool.submit(gc.collect, reg.registry) for _ in range(COLLECTORS)]
                return [done.result(120) for done in running]

        assert sum(done.revisions for done in together()) == 6 * 3  # two of each line are kept
        clock.now += 1001
        assert sum(done.objects for done in together()) >= 6 * 3
        assert reg.blobs() == reg.referenced()
        assert len(reg.blobs()) == 6 * 2
        for head, pack in heads:
            assert reg.pack(head) == pack
        assert together() == [gc.Collected(0, 0, 0)] * COLLECTORS


def test_a_server_told_not_to_collect_does_not(own_server: Server) -> None:
    """And one that is told to, does: both with what is free at once."""

    def collected(seconds: str, done: Callable[[int], bool], most: float) -> int:
        own_server.env = {
            "CACHESVC_SERVER_GC_SECONDS": seconds,
            "CACHESVC_SERVER_KEEP_REVISIONS": "1",
            "CACHESVC_SERVER_KEEP_DAYS": "0",
        }
        server = own_server.start()
        head = None
        for number in range(3):
            made = make(server.key, name=f"n{seconds}", content=b"%d" % number)
            ok(server.api().publish(made, head))
            head = made.revision
        until = time.monotonic() + most
        while (
            not done(left := ok(server.api().http.get("/v1/stats"))["revisions"]) and time.monotonic() < until
        ):
            time.sleep(0.5)
        server.stop()
        return int(left)

    assert collected("10", lambda left: left == 1, 25) == 1
    assert collected("0", lambda _: False, 13) == 1 + 3
