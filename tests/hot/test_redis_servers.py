"""Test the ways in which people run Redis: each works, or the check says what to name."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from cachesvc.hot.redis import RedisHot
from cachesvc_client.wire.errors import Unavailable
from tests.services.certificate import certificate
from tests.services.process import free_port
from tests.services.redis import redis_server

pytestmark = pytest.mark.services


def works(url: str) -> None:
    hot = RedisHot(url)
    hot.check()
    hot.put("a", b"1")
    hot.hold("h", "me", b"2", 60.0)
    assert (hot.get("a"), hot.count("n"), hot.holders("h")) == (b"1", 1, {"me": b"2"})
    hot.close()


def test_tls_with_a_private_authority_works(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    port, tls = free_port(), free_port()
    options = ("--tls-port", str(tls), "--tls-cert-file", str(chain), "--tls-key-file", str(key))
    with redis_server(port, *options, "--tls-auth-clients", "no", "--tls-ca-cert-file", str(chain)):
        works(f"rediss://127.0.0.1:{tls}/0?ssl_ca_certs={chain}")
        with pytest.raises(Unavailable, match=r"(?i)certificate.*ssl_ca_certs"):
            RedisHot(f"rediss://127.0.0.1:{tls}/0").check()


def test_a_user_with_the_rights_that_operators_page_names_works() -> None:
    with redis_server() as url:
        admin, port = redis.Redis.from_url(url), url.rpartition(":")[2]
        rights = ("~cachesvc/*", "&cachesvc/*", "+@all", "-@dangerous", "-@admin")
        admin.execute_command("ACL", "SETUSER", "registry", "on", ">secret", *rights)
        works(f"redis://registry:secret@127.0.0.1:{port}/0")


LACKING = {
    "keys": ("&*", "+@all"),
    "channels": ("~*", "resetchannels", "+@all"),
    "commands": ("~*", "&*", "+ping"),
}


@pytest.mark.parametrize("lacking", LACKING)
def test_a_user_that_lacks_a_right_is_reported_at_the_start(lacking: str) -> None:
    with redis_server() as url:
        admin, port = redis.Redis.from_url(url), url.rpartition(":")[2]
        admin.execute_command("ACL", "SETUSER", "registry", "on", ">secret", *LACKING[lacking])
        with pytest.raises(Unavailable, match="ermission") as caught:
            RedisHot(f"redis://registry:secret@127.0.0.1:{port}/0").check()
    assert "cachesvc/*" in caught.value.hint and "secret" not in str(caught.value)


OTHER_SERVERS = {
    "a Redis Cluster": ("--cluster-enabled", "yes", "--cluster-port", "{}"),
    "a replica": ("--replicaof", "127.0.0.1", "{}"),
}


@pytest.mark.parametrize("what", OTHER_SERVERS)
def test_a_server_that_takes_no_hints_is_refused_at_the_start(what: str, tmp_path: Path) -> None:
    options = [option.format(free_port()) for option in OTHER_SERVERS[what]]
    with (
        redis_server(None, *options, "--dir", str(tmp_path)) as url,
        pytest.raises(Unavailable) as caught,
    ):
        RedisHot(url).check()
    assert what in caught.value.hint


def test_a_sentinel_is_refused_at_the_start(tmp_path: Path) -> None:
    port = free_port()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text("sentinel resolve-hostnames no\n")
    with (
        redis_server(port, "--sentinel", configuration=configuration) as url,
        pytest.raises(Unavailable) as caught,
    ):
        RedisHot(url).check()
    assert "a Sentinel" in caught.value.hint
