"""Test that the first reason of a start is its cause, for causes that are no difference of the model's, and
that the numbers are right meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.outcome.judge import OTHER_KEYS

from .conftest import Built
from .harness import SCALAR, run

pytestmark = pytest.mark.compiles
DAMAGED = "1 of 3 restored files changed after the install and are damaged, such as "
OFF = "PyTorch's caches are switched off in this process (fx_graph_cache=False): "
CASES = [
    ("other threads", "partial", "threads: here 1, entry 2: "),
    ("capability default", "inert", "cpu_isa: here INVALID_VEC_ISA, entry "),
    ("capability avx2", "", "cpu_isa: here avx2, entry "),
    ("cut kernel", "partial", DAMAGED),
    ("cut kernel, other threads", "inert", DAMAGED),
    ("cut graph", "partial", DAMAGED),
    ("overwritten graph", "partial", DAMAGED),
    ("overwritten trace", "hit", DAMAGED),
    ("cut trace", "hit", DAMAGED),
    ("switched off", "partial", OFF),
]


@pytest.mark.parametrize(("how", "state", "reason"), CASES, ids=[case[0] for case in CASES])
def test_the_first_reason_is_the_cause(
    tmp_path: Path, request: pytest.FixtureRequest, how: str, state: str, reason: str
) -> None:
    fixture, settings = ("vector", QUICK) if how.startswith("capability") else ("small", SCALAR)
    built: Built = request.getfixturevalue(fixture)
    variables = {**settings, "CACHESVC_TRUSTED_KEYS": built.trusted}
    result = run("reasons.py", how, str(built.bundle), place=tmp_path, prepared=True, **variables)
    answer = result.answer
    assert answer["difference"] < 1e-5, answer
    if how == "capability avx2" and answer["state"] == "hit":
        pytest.skip("this CPU has nothing above AVX2")
    assert answer["state"] == (state or "inert"), answer
    reasons = answer["reasons"]
    assert reasons[0].startswith(reason), reasons
    assert len(set(reasons)) == len(reasons) and OTHER_KEYS not in reasons
    assert answer["differences"] == [] or not reason.startswith((DAMAGED, OFF)), "no factor is the cause"
    if answer["differences"]:
        assert reasons[0].partition(":")[0] == answer["differences"][0], "as `explain` names it"
    warned = [line for line in result.err.splitlines() if "compiled here after a restore" in line]
    assert len(warned) == (answer["state"] != "hit"), result.err
    assert all(line.endswith(f": {reasons[0]}") for line in warned), "the log says the same"


@pytest.mark.parametrize(
    ("model", "layer"), [("own", "Block"), ("llama", "LlamaDecoderLayer"), ("bert", "BertLayer")]
)
def test_a_model_with_fewer_layers_is_another_model(tmp_path: Path, model: str, layer: str) -> None:
    key = SigningKey.generate()
    key.save(tmp_path / "signing.key")
    variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": str(key.public)}
    words = (str(tmp_path / "layers.cachesvc"), str(tmp_path / "signing.key"), model)
    run("layers.py", "compile", *words, "3", place=tmp_path / "builder", prepared=True, **variables)
    served = run("layers.py", "serve", *words, "1", place=tmp_path / "service", prepared=True, **variables)
    first = served.answer["reasons"][0]
    assert first.startswith("modules: here ") and "another model" in first, served.answer
    assert f"{layer} x1" in first and f"{layer} x3" in first and "\n" not in first and len(first) < 400
