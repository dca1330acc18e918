"""Test several collectors at once: a replica's, a CronJob's, an operator's."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from registry_inside import START, Clock, Column, inside
from registry_making import Server, make, ok

from cachesvc.registry.upkeep import gc
from cachesvc_client.bundle.seal import SigningKey

COLLECTORS = 4
KEY = SigningKey.generate()


def test_collectors_at_once_do_the_work_of_one(tmp_path: Path, column: Column) -> None:
    """No collector fails. When all are done, every live object is there, and every dead one is gone."""
    clock = Clock()
    with inside(tmp_path, KEY, clock, column=column) as reg:
        heads = []
        for entry in range(6):
            head = None
            for number in range(5):
                publication = make(
                    KEY,
                    target=f"t{entry}",
                    sequence=(START + number) * 1000,
                    content=b"%d.%d" % (entry, number) * 50,
                )
                head = reg.publish(publication, head).revision
            heads.append((head, publication.pack))
        clock.now += 2 * 86_400

        def together() -> list[gc.Collected]:
            with ThreadPoolExecutor(COLLECTORS) as pool:
                running = [pool.submit(gc.collect, reg.registry) for _ in range(COLLECTORS)]
                return [collection.result(120) for collection in running]

        # The policy keeps two revisions of each entry.
        assert sum(collection.revisions for collection in together()) == 6 * 3
        clock.now += 1001
        assert sum(collection.objects for collection in together()) >= 6 * 3
        assert reg.blobs() == reg.referenced()
        assert len(reg.blobs()) == 6 * 2
        for head, pack in heads:
            assert reg.pack(head) == pack
        assert together() == [gc.Collected(0, 0, 0)] * COLLECTORS


def test_a_server_collects_only_if_its_settings_say_so(own_server: Server) -> None:
    """The first server has collection switched off, the second one has it on; both delete objects at once
    when they are free."""

    def revisions_after(seconds: str, reached: Callable[[int], bool], most: float) -> int:
        own_server.env = {
            "CACHESVC_SERVER_GC_SECONDS": seconds,
            "CACHESVC_SERVER_KEEP_REVISIONS": "1",
            "CACHESVC_SERVER_KEEP_DAYS": "0",
        }
        server = own_server.start()
        head = None
        for number in range(3):
            publication = make(server.key, name=f"n{seconds}", content=b"%d" % number)
            ok(server.api().publish(publication, head))
            head = publication.revision
        until = time.monotonic() + most
        while (
            not reached(revisions := ok(server.api().http.get("/v1/stats"))["revisions"])
            and time.monotonic() < until
        ):
            time.sleep(0.5)
        server.stop()
        return int(revisions)

    assert revisions_after("10", lambda revisions: revisions == 1, 25) == 1
    assert revisions_after("0", lambda _: False, 13) == 1 + 3
