"""Test the agent as a process: its pages, its memory, its end, and a registry that is away."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.registries import wait_for
from tests.services.process import free_port
from tests.services.relay import Relay

from .conftest import Node, Publisher

MAX_KIB = 50 << 10
START = """
import json, os, cachesvc_client
from cachesvc_client.session.sessions import attached
session = cachesvc_client.attach(os.environ["TEST_NAME"])
attached().before_compile()
session.wait(30)
result = session.result
print(json.dumps({
    "installed": [entry.revision for entry in result.installed] if result else [],
    "problems": (result.problems if result else []) or [str(session.status)],
    "moved": result.moved if result else -1,
    "user": os.geteuid(),
}))
os._exit(0)
"""


class Agent:
    """A running ``cachesvc node``, and its pages."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def page(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    def value(self, name: str) -> float:
        match = re.search(rf"^cachesvc_node_{re.escape(name)} (\S+)$", self.page("metrics")[1], re.M)
        return float(match[1]) if match else 0.0


@contextlib.contextmanager
def agent(store: Path, variables: dict[str, str], *words: str) -> Iterator[Agent]:
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "cachesvc", "node", *words, "--store", str(store)),
            *("--interval", "1s", "--listen", f"127.0.0.1:{port}"),
        ],
        env={**kept, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Agent(process, port)
    finally:
        process.kill()
        process.communicate()


def start(
    place: Path, variables: dict[str, str], name: str, launcher: tuple[str, ...] = (), **more: str
) -> dict[str, Any]:
    """Start a service on this node, without torch, whose own store is empty."""
    import json

    place.mkdir(parents=True)
    place.chmod(0o1777)
    # Other tests of this process may have named folders of compilers: PyTorch does so itself.
    prefixes = ("CACHESVC_", "TORCHINDUCTOR_", "TRITON_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    own = {
        "TEST_NAME": name,
        "CACHESVC_REPORT": "0",
        "CACHESVC_STORE": str(place / "own"),
        # PyTorch's folder there is named after USER, who may be another user's.
        "TMPDIR": str(place),
    }
    done = subprocess.run(
        [*launcher, sys.executable, "-c", START],
        env={**kept, **variables, "HOME": str(place), **own, **more},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def relay(publisher: Publisher) -> Iterator[Relay]:
    between = Relay(publisher.served.address)
    yield between
    between.close()


@pytest.fixture
def variables(publisher: Publisher, relay: Relay) -> dict[str, str]:
    return {**publisher.served.variables, "CACHESVC_URL": relay.url}


def test_services_start_without_the_registry_and_the_agent_lives_on_without_it(
    publisher: Publisher, node: Node, relay: Relay, variables: dict[str, str], tmp_path: Path
) -> None:
    first = publisher.publish("live/bert", seed=1)
    with agent(node.root, variables, "live/*") as running:
        wait_for(lambda: running.page("readyz")[0] == 200)
        assert running.page("healthz") == (200, "ok\n")
        assert running.page("other")[0] == 404
        size = Path(f"/proc/{running.process.pid}/status").read_text()
        assert int(re.search(r"VmHWM:\s*(\d+)", size)[1]) < MAX_KIB
        assert "torch" not in Path(f"/proc/{running.process.pid}/maps").read_text()
        shared = {"CACHESVC_NODE_STORE": str(node.root)}
        running.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: state(running.process.pid) == "T")
        sent = relay.sent
        answer = start(tmp_path / "a", variables, "live/bert", **shared)
        assert (answer["installed"], answer["moved"], relay.sent) == ([first.revision], 0, sent)
        running.process.send_signal(signal.SIGCONT)

        relay.close()
        wait_for(lambda: running.value("failures") >= 1)
        answer = start(tmp_path / "b", variables, "live/bert", **shared, CACHESVC_NODE_AGE="0")
        assert (answer["installed"], answer["moved"]) == ([first.revision], 0)
        assert "last answer" in answer["problems"][0]
        assert running.page("healthz")[0] == running.page("readyz")[0] == 200

        second = publisher.publish("live/bert", seed=2)
        relay.open()
        wait_for(lambda: node_offers(node, variables, "live/bert") == [second.revision])
        assert running.value("failures") == 0
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(10) == 0
        assert "the agent has ended" in running.process.stderr.read()


def node_offers(node: Node, variables: dict[str, str], name: str) -> list[str] | None:
    from cachesvc_client.config.settings import Config

    return Node(node.root, Config.read(variables), node.measures).offers(name)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_an_agent_that_ends_in_a_download_leaves_the_rest_to_the_next(
    publisher: Publisher, node: Node, relay: Relay, variables: dict[str, str], end: signal.Signals
) -> None:
    size = 24_000_000
    entry = publisher.publish(f"cut/{end.name.lower()}", seed=1, size=size)
    name = f"cut/{end.name.lower()}"
    with agent(node.root, variables, name) as running:
        relay.limit = relay.sent + size * 3 // 4
        relay.at_limit = lambda: running.process.send_signal(end)
        assert running.process.wait(20) == {signal.SIGKILL: -9, signal.SIGTERM: 0}[end]
    assert not node.packs()
    [partial] = (node.root / "v1" / "partial").iterdir()
    there = partial.stat().st_size
    assert 0 < there < size
    relay.limit, sent = None, relay.sent
    relay.close()
    relay.open()
    with agent(node.root, variables, name):
        wait_for(lambda: entry.pack in node.packs())
        assert relay.sent - sent < size - there + 100_000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process of another user")
def test_a_service_of_another_user_reads_a_store_that_it_cannot_write(
    publisher: Publisher, node: Node, variables: dict[str, str], tmp_path: Path
) -> None:
    entry = publisher.publish("other/bert", seed=1)
    temporary = Path(tempfile.gettempdir())
    for folder in (tmp_path, *tmp_path.parents):
        if folder == temporary:
            break
        folder.chmod(0o755)
    with agent(node.root, variables, "other/bert") as running:
        wait_for(lambda: running.page("readyz")[0] == 200)
    mounted = f'mount --bind -o ro {node.root} {node.root} && exec setpriv --reuid=65534 --clear-groups "$@"'
    launcher = ("unshare", "--mount", "sh", "-c", mounted, "sh")
    answer = start(
        tmp_path / "service", variables, "other/bert", launcher, CACHESVC_NODE_STORE=str(node.root)
    )
    assert answer["user"] == 65534
    assert (answer["installed"], answer["moved"]) == ([entry.revision], 0), answer


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("team/bert", "--interval", "0"), "--interval"),
        (("team/bert", "--listen", "nowhere"), "--listen"),
        (("team/bert", "--max-size", "much"), "--max-size"),
        (("team/bert", "--only", "gpu"), "--only"),
        (("bert",), "PATTERN"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(
    publisher: Publisher, node: Node, words: tuple[str, ...], fault: str, capsys: Any, monkeypatch: Any
) -> None:
    from cachesvc.cli import main

    for name, value in publisher.served.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["cachesvc", "node", *words, "--store", str(node.root)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {fault}")
    assert error.count("\n") == 1
