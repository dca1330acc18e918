"""Test the way of a service: a registry, a name and fresh hosts, and every way in which the registry can
fail."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.hosts import QUICK

from .conftest import NAME, Built
from .harness import SCALAR, ProgramResult, environment, run
from .registries import Served, client, free_url, hung, prepare, serve

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def registry(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a registry that holds the bundle, pushed by the command that users run."""
    folder = tmp_path_factory.mktemp("registry")
    prepare(folder, built.key.text)
    with serve(folder) as served:
        result = client("push", str(built.bundle), **served.publisher)
        assert result.returncode == 0, result.stderr
        again = client("push", str(built.bundle), **served.publisher)
        assert again.returncode == 0, "a second push of the same manifest succeeds"
        yield served


def _serve(place: Path, built: Built, registry: Served, *arguments: str, **more) -> ProgramResult:
    variables = {**registry.variables, **more.pop("variables", {})}
    return run(
        "serve.py", f"name={NAME}", f"expect={built.expect}", *arguments, place=place, **more, **variables
    )


def test_a_damaged_node_store_is_repaired(tmp_path: Path, built: Built, registry: Served) -> None:
    assert _serve(tmp_path, built, registry, compilers=False, prepared=True).answer["state"] == "hit"
    store = tmp_path / "home" / ".cache" / "cachesvc" / "v1"
    [pack] = (store / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.write_bytes(data)
    [kernel] = list((store / "folders").rglob("cachesvc/*/*.so"))[:1]
    kernel.write_bytes(kernel.read_bytes()[:100])
    for path in (store / "folders").rglob("fxgraph/*/*/*"):
        path.unlink()
    result = _serve(tmp_path, built, registry, compilers=False, prepared=True)
    assert result.answer["state"] == "hit" and result.answer["same_as_builder"], result.answer


def test_run_reaches_spawned_workers_without_a_code_change(tmp_path: Path, registry: Served) -> None:
    result = run(
        "spawned.py",
        place=tmp_path,
        compilers=False,
        before=(sys.executable, "-m", "cachesvc_client", "run", NAME, "--"),
        **registry.variables,
    )
    answers = [json.loads(line) for line in result.out.splitlines()]
    assert {answer["worker"] for answer in answers} == {"spawned 0", "spawned 1"}, result.err
    assert [(answer["state"], answer["compilations"]) for answer in answers] == [("hit", 0)] * 2, answers
    assert all(answer["difference"] < 1e-5 for answer in answers)


def test_run_reaches_the_ranks_of_torchrun(tmp_path: Path, registry: Served) -> None:
    result = run(
        "spawned.py",
        place=tmp_path,
        compilers=False,
        before=(sys.executable, "-m", "cachesvc_client", "run", NAME, "--"),
        python=sys.executable,
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        **registry.variables,
    )
    answers = [json.loads(line) for line in result.out.splitlines() if line.startswith("{")]
    assert {answer["worker"] for answer in answers} == {"rank 0", "rank 1"}, result.err[-3000:]
    assert [(answer["state"], answer["compilations"]) for answer in answers] == [("hit", 0)] * 2, answers


def test_an_import_and_variables_are_enough(tmp_path: Path, built: Built, registry: Served) -> None:
    result = _serve(
        tmp_path, built, registry, "when=auto", compilers=False, variables={"CACHESVC_NAME": NAME}
    )
    assert result.answer["state"] == "hit", result.answer


def test_compile_is_torchs_own_and_is_restored(tmp_path: Path, built: Built, registry: Served) -> None:
    result = _serve(tmp_path, built, registry, "when=compile", compilers=False)
    answer = result.answer
    assert answer["compiled"] == "torch._dynamo.eval_frame.OptimizedModule"
    assert answer["state"] == "hit" and answer["same_as_builder"], answer
    assert result.compilers == [] and answer["observed"]["processes"] == []
    assert answer["primed"] is True and answer["status"] == {f"{NAME}:latest": "restored"}
    assert answer["registered"], "the model hash is known, so entries of this model rank first"


def test_a_node_starts_from_its_last_answer_while_the_registry_is_down(tmp_path: Path, built: Built) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "signing.key").write_text(built.key.text)
    (tmp_path / "data" / "signing.key").chmod(0o600)
    with serve(tmp_path) as served:
        assert client("push", str(built.bundle), **served.publisher).returncode == 0
        assert _serve(tmp_path, built, served, compilers=False, prepared=True).answer["state"] == "hit"
    [answer] = (tmp_path / "home" / ".cache" / "cachesvc" / "v1" / "resolved").iterdir()
    hour_ago = answer.stat().st_mtime - 3600
    os.utime(answer, (hour_ago, hour_ago))
    result = _serve(tmp_path, built, served, compilers=False, prepared=True)
    assert result.answer["state"] == "hit" and result.compilers == [], result.answer
    assert any("last answer" in reason for reason in result.answer["reasons"]), result.answer["reasons"]


WRONG = {
    "unknown name": ({"name": "team/nothing"}, "team/nothing"),
    "hung": ({"CACHESVC_URL": "hung", "CACHESVC_DEADLINE": "0.5"}, "no answer in time"),
    "malformed name": ({"name": "nothing"}, "namespace/name"),
    "wrong token": ({"CACHESVC_TOKEN": "csv_wrong"}, "token"),
    "untrusted signer": ({"CACHESVC_TRUSTED_KEYS": "other"}, "trusted"),
    "nobody listens": ({"CACHESVC_URL": "free"}, "127.0.0.1"),
    "malformed variable": ({"CACHESVC_DEADLINE": "soon"}, "CACHESVC_DEADLINE"),
}
"""For each fault: the variables and the name that differ, and the words that the service logs."""


@pytest.fixture
def wrong(registry: Served) -> Iterator[Callable[[str], tuple[str, dict[str, str]]]]:
    """Return the name and the variables of a service that one thing is wrong with."""
    from cachesvc_client.bundle.seal import SigningKey

    with hung() as silent:
        urls = {"free": free_url(), "hung": silent}

        def service(what: str) -> tuple[str, dict[str, str]]:
            variables = {**QUICK, **registry.variables, **WRONG[what][0]}
            name = variables.pop("name", NAME)
            variables["CACHESVC_URL"] = urls.get(variables["CACHESVC_URL"], variables["CACHESVC_URL"])
            if variables["CACHESVC_TRUSTED_KEYS"] == "other":
                variables["CACHESVC_TRUSTED_KEYS"] = str(SigningKey.generate().public)
            return name, variables

        yield service


@pytest.mark.parametrize("what", ["unknown name", "hung"])
def test_a_service_with_a_wrong_setting_compiles_and_says_why(tmp_path: Path, wrong, what: str) -> None:
    name, variables = wrong(what)
    result = run("serve.py", f"name={name}", "small=1", place=tmp_path, prepared=True, **variables)
    answer = result.answer
    assert answer["state"] == "miss" and answer["eager_difference"] < 1e-5, what
    assert WRONG[what][1] in " ".join(answer["reasons"]) + result.err, (answer["reasons"], result.err[-2000:])
    assert "Traceback" not in result.err


@pytest.mark.parametrize("what", WRONG)
def test_the_first_compile_goes_on_and_the_service_says_why_whatever_is_wrong(
    tmp_path: Path, wrong, what: str
) -> None:
    """No torch is needed: the compile itself is the same in all cases."""
    name, variables = wrong(what)
    result = run("waits.py", name, place=tmp_path, **variables)
    assert result.answer["status"] == "failed", result.answer
    messages = " ".join(result.answer["reasons"]) + result.err
    assert WRONG[what][1] in messages, (result.answer, result.err[-2000:])
    assert "Traceback" not in result.err


def test_strict_makes_a_wrong_setting_an_error(tmp_path: Path, registry: Served) -> None:
    result = run(
        "serve.py",
        "name=team/nothing",
        "small=1",
        place=tmp_path,
        prepared=True,
        **SCALAR,
        **registry.variables,
        CACHESVC_STRICT="1",
    )
    assert result.code != 0 and "team/nothing" in result.err


def test_explain_names_the_factor_that_differs(tmp_path: Path, registry: Served) -> None:
    variables = {**environment(tmp_path), **registry.variables}
    fits = client("explain", NAME, **variables)
    assert fits.returncode == 0 and "small/float32/default" in fits.stdout, fits.stderr
    differs = client("explain", NAME, "--json", **variables, ATEN_CPU_CAPABILITY="avx2")
    assert "cpu_isa" in differs.stdout, differs.stderr


def test_pull_writes_a_bundle_that_needs_no_registry(tmp_path: Path, built: Built, registry: Served) -> None:
    into = tmp_path / "image"
    pulled = client(
        "pull", NAME, "--into", str(into), **{**environment(tmp_path / "b"), **registry.variables}
    )
    assert pulled.returncode == 0, pulled.stderr
    result = run(
        "serve.py",
        f"bundle={into}",
        f"expect={built.expect}",
        place=tmp_path,
        compilers=False,
        prepared=True,
        CACHESVC_TRUSTED_KEYS=built.trusted,
    )
    assert result.answer["state"] == "hit" and result.compilers == []


def test_publish_from_a_service_is_restored_by_the_next(tmp_path: Path, registry: Served) -> None:
    variables = {**SCALAR, **registry.publisher, "CACHESVC_MODE": "readwrite"}
    first = run(
        "serve.py",
        "name=team/published",
        "small=1",
        "publish=1",
        place=tmp_path / "one",
        prepared=True,
        **variables,
    )
    assert first.answer["state"] == "miss"
    second = run(
        "serve.py",
        "name=team/published",
        "small=1",
        place=tmp_path / "two",
        prepared=True,
        compilers=False,
        **SCALAR,
        **registry.variables,
    )
    assert second.answer["state"] == "hit" and second.compilers == [], second.answer
