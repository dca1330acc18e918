"""What a client takes from the others by asking much or sending slowly: a bounded share."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from registry_inside import Clock, Inside, inside
from registry_making import FINGERPRINT, make, refused

from cachesvc.api.app import create_app
from cachesvc.domain.access import Role, Token
from cachesvc.registry.access import tokens
from cachesvc.registry.waiting import Waiting
from cachesvc.schema.access import TokenRequest
from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.requests.claims import ClaimAnswer, ClaimRequest, ClaimSubject

HEADS = 30
"""Heads under the name that is asked for."""


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock()) as registry:
        yield registry


def _many_heads(reg: Inside) -> None:
    for number in range(HEADS):
        fingerprint = {**FINGERPRINT, "cpu_isa": f"isa{number}"}
        assert reg.bundle(make(reg.key, target=f"t{number}", fingerprint=fingerprint)).created


def _with_clients(reg: Inside, roles: list[str], act: Callable[..., Awaitable[None]], **options: int) -> None:
    """Runs ``act`` with one HTTP client for each role, each with a token of its own."""
    app = create_app(reg.registry, **options)

    async def run() -> None:
        async with app.router.lifespan_context(app):
            clients = []
            for role in roles:
                role, _, lane = role.partition(":")
                request = TokenRequest("t", role, "team", lane or None)
                secret = tokens.create_token(reg.registry, None, request).secret
                headers = {"Authorization": f"Bearer {secret}"}
                transport = httpx.ASGITransport(app)
                clients.append(
                    httpx.AsyncClient(transport=transport, base_url="http://r", headers=headers, timeout=60)
                )
            await act(*clients)

    asyncio.run(run())


def _resolve(client: httpx.AsyncClient, **facts: object) -> Awaitable[httpx.Response]:
    body = {"namespace": "team", "name": "bert", "fingerprint": {**FINGERPRINT, **facts}}
    return client.post("/v1/resolve", content=json.dumps(body), headers={"Content-Type": "application/json"})


def test_a_reader_who_asks_much_does_not_stall_another(reg: Inside) -> None:
    _many_heads(reg)
    number = random.Random(1)
    count, flags = 40, 2_900

    async def act(attacker: httpx.AsyncClient, honest: httpx.AsyncClient) -> None:
        for client in (attacker, honest):
            await _resolve(client)  # from now on the tokens are known
        questions = [[f"{number.getrandbits(64):016x}" for _ in range(flags)] for _ in range(count)]
        asked = [asyncio.create_task(_resolve(attacker, cpu_flags=question)) for question in questions]
        await asyncio.sleep(0.05)
        assert (await _resolve(honest, torch="2.13.1")).status_code == 200
        # By turns it was answered among the first; in the order of arrival it would be the last.
        unanswered = sum(not task.done() or task.result().status_code > 400 for task in asked)
        assert unanswered > count / 2
        assert {(await task).status_code for task in asked} <= {200, 413, 422}

    _with_clients(reg, ["read", "read"], act)


def test_a_reader_with_a_long_fingerprint_takes_no_seconds(reg: Inside) -> None:
    _many_heads(reg)

    async def act(attacker: httpx.AsyncClient) -> None:
        began = time.process_time()
        answer = await _resolve(attacker, cpu_flags=["x" * 16] * 180_000)
        assert time.process_time() - began < 0.5
        refused(answer, 413, "too_large", "bytes")

    _with_clients(reg, ["read"], act)


def test_a_reader_learns_in_one_line_that_its_fingerprint_is_too_long(reg: Inside) -> None:
    async def act(reader: httpx.AsyncClient) -> None:
        answer = await _resolve(reader, cpu_flags=["x" * 16] * 4000)
        assert len(refused(answer, 422, "invalid", "fingerprint", "65536")) < 200

    _with_clients(reg, ["read"], act)


@pytest.mark.parametrize("attackers", [["write:pr-1"], ["write:pr-1", "write:pr-2", "write:pr-3"], ["write"]])
def test_a_writer_with_silent_uploads_does_not_stop_the_trunk(reg: Inside, attackers: list[str]) -> None:
    """40 bodies that never end, of one token or of several lanes; the trunk publishes all the same."""
    bundle = make(reg.key)

    async def act(honest: httpx.AsyncClient, *writers: httpx.AsyncClient) -> None:
        async def silence() -> AsyncIterator[bytes]:
            yield b"x"
            await asyncio.Event().wait()

        async def hold(writer: httpx.AsyncClient, lane: str) -> None:
            begin = {"namespace": "team", "name": "bert", "size": 1000, **({"lane": lane} if lane else {})}
            upload = (await writer.post("/v1/uploads", json=begin)).json()["upload"]
            await writer.put(f"/v1/uploads/{upload}/pack", content=silence())

        lanes = [role.partition(":")[2] for role in attackers]
        pairs = list(zip(writers, lanes, strict=True)) * 40
        held = [asyncio.create_task(hold(*pair)) for pair in pairs[:40]]
        await asyncio.sleep(1.5)
        said = {"namespace": "team", "name": "bert"}
        content = bundle_head(bundle.envelope) + bundle.pack
        async with asyncio.timeout(40):
            assert (await honest.post("/v1/bundles", params=said, content=content)).status_code == 200
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    _with_clients(reg, ["write", *attackers], act)


def test_claims_that_wait_leave_places_to_other_lanes_and_namespaces(reg: Inside) -> None:
    """Two tokens had all places; who got none asked again and again."""

    async def gone() -> bool:
        return False

    async def act() -> None:
        waiting = Waiting(reg.registry, waiters=16)

        async def ask(
            number: int, namespace: str, lane: str | None = None
        ) -> list[asyncio.Task[ClaimAnswer]]:
            token = Token(f"t-{namespace}-{lane}", "", Role.write, namespace, lane and Lane(lane))
            place = Namespace(namespace), ShortName("bert"), Digest.of(b"here")
            subject = ClaimSubject(*place, lane=lane and Lane(lane))
            holder, *requests = [ClaimRequest(subject, f"{one:032x}", wait=20.0) for one in range(number + 1)]
            assert (await waiting.claim(token, holder, gone)).state == "yours"
            return [asyncio.create_task(waiting.claim(token, one, gone)) for one in requests]

        asked, numbers = [], []
        for number, *place in ((8, "evil", "pr-1"), (8, "evil", "pr-2"), (16, "evil"), (2, "honest")):
            asked += await ask(number, *place)
            await asyncio.sleep(0.5)
            numbers.append(waiting.number)
        assert numbers == [4, 8, 10, 12], "of 16: a quarter is a lane's, and ten are a namespace's"
        waiting.close()
        await asyncio.gather(*asked)

    asyncio.run(act())
