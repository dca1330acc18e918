"""Test a start that hits, and a start that misses although files were installed: what each one reports, what
the registry keeps, and which part of PyTorch's own key differed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.key_components import decode

from .conftest import NAME, Built
from .harness import SCALAR, ProgramResult, environment, run
from .registries import Served, client, prepare, serve

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def registry(small: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("registry")
    prepare(folder, small.key.text)
    with serve(folder, prepared=False) as served:
        result = client("push", str(small.bundle), **served.publisher)
        assert result.returncode == 0, result.stderr
        yield served


def token(registry: Served, role: str) -> str:
    body = {"label": role, "role": role, "namespace": "team"}
    response = httpx.post(f"{registry.url}/v1/tokens", json=body, headers=_bearer(registry.token))
    return response.json()["secret"]


def _bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def uses(registry: Served) -> list[dict[str, Any]]:
    url = f"{registry.url}/v1/namespaces/team/entries"
    [entry] = httpx.get(url, headers=_bearer(registry.token)).json()
    return entry["usefulness"]


def hits(registry: Served) -> int:
    return sum(use["hit"] for use in uses(registry))


def start(
    place: Path, registry: Served, *arguments: str, prepared: bool = True, **more: str
) -> ProgramResult:
    variables = {**SCALAR, **registry.variables, **more}
    words = (f"name={NAME}", "small=1", *arguments)
    return run("serve.py", *words, place=place, prepared=prepared, **variables)


def test_the_key_components_of_a_bundle_are_small(small: Built) -> None:
    manifest = small.manifest(small.bundle)
    assert manifest.key_facts is not None and len(manifest.key_facts) < 5000
    facts = decode(manifest.key_facts)
    files = {part for record in manifest.files for part in record.path.split("/")}
    assert facts.keys and set(facts.keys) <= files
    layers = {key[0] for key in facts.keys}
    assert layers == {"a", "f"}, "AOTAutograd's and Inductor's"
    aot = next(facts.of(key) for key in facts.keys if key[0] == "a")
    assert aot["grad_enabled"] == "False" and aot["cpp_runtime_thread_count"] == "2"
    fx = next(facts.of(key) for key in facts.keys if key[0] == "f")
    assert fx["example_inputs[0]"].startswith("float32[")
    # A reader has the names: they are those of its own keys in the same torch.
    assert len(facts.unnamed["functorch_config"]) > 32 and len(facts.unnamed["inductor_config"]) > 300
    assert not any(name.startswith(("functorch_config[", "inductor_config[")) for name in (*aot, *fx))


def test_a_hit_is_reported_and_shown(tmp_path: Path, registry: Served) -> None:
    before = uses(registry)
    assert before == []
    result = start(tmp_path, registry, CACHESVC_TOKEN=token(registry, "report"))
    assert result.answer["state"] == "hit"
    assert result.answer["explaining"] == 0, "a hit needs no comparison of keys"
    [use] = uses(registry)
    assert (use["hit"], use["inert"], use.get("quarantined")) == (1, 0, None)
    assert use["saved"] == pytest.approx(result.answer["saved"], abs=0.5)
    assert use["facts"]["torch"]
    explained = client("explain", NAME, **environment(tmp_path / "e"), **SCALAR, **registry.variables)
    assert explained.returncode == 0 and "1 hit" in explained.stdout, explained.stdout
    as_json = client("explain", NAME, "--json", **environment(tmp_path / "e"), **SCALAR, **registry.variables)
    [judged] = json.loads(as_json.stdout)["entries"]
    assert judged["entry"]["usefulness"][0]["starts"]["hit"] == 1


def test_a_start_that_is_offered_nothing_is_wanted(tmp_path: Path, registry: Served) -> None:
    reader = _bearer(token(registry, "read"))
    url = f"{registry.url}/v1/namespaces/team/wanted?name=nothing"
    assert httpx.get(url, headers=reader).json()["rows"] == []
    more = {"CACHESVC_TOKEN": token(registry, "report")}
    variables = {**SCALAR, **registry.variables, **more}
    result = run("serve.py", "name=team/nothing", "small=1", place=tmp_path, **variables)
    assert result.answer["state"] == "miss", result.answer
    [row] = httpx.get(url, headers=reader).json()["rows"]
    assert (row["starts"], row["tag"]) == (1, "latest") and row["spent"] > 0 and "target" not in row
    assert row["fingerprint"]["torch"] == row["facts"]["torch"]


def test_grad_mode_makes_a_start_inert_and_the_start_says_so(tmp_path: Path, registry: Served) -> None:
    result = start(tmp_path, registry, "grad=1", CACHESVC_TOKEN=token(registry, "report"))
    answer = result.answer
    assert answer["state"] in ("inert", "partial"), answer
    assert answer["differences"][0] == "grad mode: here True, entry False", answer["differences"]
    assert any("grad mode: here True, entry False" in reason for reason in answer["reasons"])
    assert answer["kinds"]["inductor"]["compilations"] > 0 < answer["kinds"]["inductor"]["seconds"]
    assert answer["explaining"] < 1.0
    [use] = uses(registry)
    assert use[answer["state"]] == 1 and use["why"].startswith("grad mode")


def test_settings_that_differ_are_named_before_their_consequences(tmp_path: Path, registry: Served) -> None:
    switches = {"CACHESVC_REPORT": "0", "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": "1"}
    # The number is set after the import of torch, and a restore that finds torch imported reads it there.
    answer = start(tmp_path, registry, "threads=1", prepared=False, **switches).answer
    assert answer["state"] in ("partial", "inert"), answer
    first, second, *rest = answer["differences"]
    assert first == "thread count: here 1, entry 2"
    assert second.startswith("inductor config: max_autotune_pointwise: here True, entry "), answer[
        "differences"
    ]
    assert not [text for text in rest if text.startswith(("graph", "input"))], "the code is the same"


@pytest.mark.parametrize("how", ["switched off", "a token that only reads", "no token"])
def test_a_start_without_the_right_to_report_reports_nothing(
    tmp_path: Path, registry: Served, how: str
) -> None:
    before = uses(registry)
    variables = {
        "switched off": {"CACHESVC_REPORT": "0"},
        "a token that only reads": {"CACHESVC_TOKEN": token(registry, "read")},
        "no token": {"CACHESVC_TOKEN": ""},
    }[how]
    result = start(tmp_path, registry, **variables)
    assert result.code == 0 and "report" not in result.err
    assert uses(registry) == before


def test_a_killed_service_dies_at_once(tmp_path: Path, registry: Served) -> None:
    """SIGTERM with Python's default handler ends a process without exit functions; cachesvc does not change
    that."""
    code = (
        "import cachesvc_client, sys, time\n"
        f"cachesvc_client.attach({NAME!r}).wait(60)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**environment(tmp_path), **SCALAR, **registry.variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM


def test_an_exit_waits_a_second_for_a_registry_that_hangs(tmp_path: Path, registry: Served) -> None:
    """The test stops the registry between restore and exit: its socket takes connections, and nobody
    answers."""
    code = (
        "import cachesvc_client, os, sys, time\n"
        f"session = cachesvc_client.attach({NAME!r})\n"
        "session.wait(60)\n"
        "assert session.status == 'restored', session.error\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "import atexit\n"
        "begin = time.monotonic()\n"
        "atexit._run_exitfuncs()\n"
        "print(time.monotonic() - begin)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**environment(tmp_path), **SCALAR, **registry.variables},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    with process.stdout, process.stdin:
        assert process.stdout.readline() == "ready\n"
        registry.process.send_signal(signal.SIGSTOP)
        try:
            process.stdin.write("\n")
            process.stdin.flush()
            seconds = float(process.stdout.readline())
        finally:
            registry.process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 0
    assert 0.5 < seconds < 8, "one second is the bound; the machine may be busy"


def test_after_reports_of_three_hosts_with_two_tokens_the_next_start_gets_the_reason(
    tmp_path: Path, registry: Served
) -> None:
    resolved = start(tmp_path / "one", registry, CACHESVC_REPORT="0")
    assert resolved.answer["state"] == "hit"
    code = (
        "import sys, json\n"
        "from cachesvc_client.process.process import process\n"
        "from cachesvc_client.wire.codec import plain\n"
        "import cachesvc_client\n"
        f"session = cachesvc_client.attach({NAME!r}); session.wait(60)\n"
        "print(json.dumps([plain(process().fingerprint), session.result.installed[0].revision]))\n"
    )
    env = {**environment(tmp_path / "two"), **SCALAR, **registry.variables, "CACHESVC_REPORT": "0"}
    fingerprint, revision = json.loads(subprocess.check_output([sys.executable, "-c", code], env=env))
    first, second = token(registry, "report"), token(registry, "report")
    for number, secret in enumerate([first, first, second]):
        body = {
            "node": Digest.of(b"%d" % number).hex[:32],
            "fingerprint": fingerprint,
            "revisions": [{"revision": revision, "state": "inert"}],
            "why": ["grad mode"],
        }
        answer = httpx.post(f"{registry.url}/v1/reports", json=body, headers=_bearer(secret))
        assert answer.status_code == 200, answer.text
    assert answer.json()["quarantined"] == [revision]
    after = start(tmp_path / "three", registry)
    assert after.answer["state"] == "miss"
    assert any("inert on the hosts of this environment" in reason for reason in after.answer["reasons"])
    env = {**environment(tmp_path / "four"), **SCALAR, **registry.variables}
    explained = client("explain", NAME, **env)
    assert (
        explained.returncode == 4 and "inert on the hosts of this environment (grad mode)" in explained.stdout
    )
    lifted = httpx.delete(
        f"{registry.url}/v1/revisions/{revision}/quarantine", headers=_bearer(registry.token)
    )
    assert lifted.status_code == 204
    assert client("explain", NAME, **env).returncode == 0
