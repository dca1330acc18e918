"""Test that a compiled step of an optimizer starts without traces, and that no frame is given for one that
differs in anything: the service's, and the builder's. The parameters are eager's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.kinds.frames.versions import is_known

from .harness import SCALAR, run

pytestmark = pytest.mark.compiles

TOLERANCE = 1e-3
"""A step of another optimizer moves the parameters at least three times as far."""

WITHOUT_TRACES = ("base", "sgd", "foreach", "groups", "lr_in_tensor", "checkpoint", "amsgrad")
"""Steps that are recorded, among others; each is different from *base*."""
FEW = ("base", "sgd", "foreach", "lr_in_tensor", "checkpoint", "hook", "one_gradient_missing")
"""Steps that `make test` runs: another class, option, value, state, hook and gradient; `make test-all` runs
all."""


class Steps:
    """A builder of these steps, of all without a name, and its bundle."""

    def __init__(self, place: Path, *names: str) -> None:
        key = SigningKey.generate()
        self._key, self._place = place / "signing.key", place
        key.save(self._key)
        self._variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": str(key.public)}
        self._built = place / "built.cachesvc"
        self.names = [*self.run("compile", self._built, *names)["steps"]]

    def run(self, what: str, bundle: Path, *names: str) -> dict[str, Any]:
        place = self._place / f"{what}-{bundle.stem}-{len(names)}"
        words = ("frames_optimizers.py", what, str(bundle), str(self._key), *names)
        answer: dict[str, Any] = run(*words, place=place, prepared=True, **self._variables).answer
        return answer

    def recorded(self, *names: str) -> tuple[Path, list[str]]:
        """Return a bundle with the frames of some steps, and what was not recorded."""
        bundle = self._place / f"recorded-{len(names)}.cachesvc"
        shutil.copy(self._built, bundle)
        return bundle, self.run("record", bundle, *names)["not_recorded"]


@pytest.fixture(
    scope="module",
    params=[pytest.param(FEW, id="few"), pytest.param((), marks=pytest.mark.long, id="all")],
)
def steps(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Steps:
    import torch

    if not is_known(torch.__version__):
        pytest.skip(f"no frames on torch {torch.__version__}")
    return Steps(tmp_path_factory.mktemp("optimizers"), *request.param)


def test_steps_start_without_traces(steps: Steps) -> None:
    names = [name for name in WITHOUT_TRACES if name in steps.names]
    bundle, not_recorded = steps.recorded(*names)
    served = steps.run("serve", bundle, *names)["steps"]
    assert {name: one["why"] for name, one in served.items() if one["traces"]} == {}, not_recorded
    assert {name: one for name, one in served.items() if one["difference"] > TOLERANCE} == {}


def test_a_service_with_another_optimizer_traces(steps: Steps) -> None:
    bundle, _ = steps.recorded("base")
    others = [name for name in steps.names if name != "base"]
    served = steps.run("serve", bundle, *others)["steps"]
    assert [name for name, one in served.items() if one.get("failed")] == []
    wrong = {name: one for name, one in served.items() if one["difference"] > TOLERANCE or not one["traces"]}
    assert wrong == {}
    assert [name for name, one in served.items() if not one["why"]] == []


def test_a_service_with_none_of_the_builders_optimizers_traces(steps: Steps) -> None:
    others = [name for name in steps.names if name != "base"]
    bundle, _ = steps.recorded(*others)
    [base] = steps.run("serve", bundle, "base")["steps"].values()
    assert base["traces"] > 0 and base["difference"] < TOLERANCE, base
