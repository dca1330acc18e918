"""Test that no frame is given where something that its trace read is another one: in the service, and in the
builder. Each program is changed in one way, and its outputs are those of eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.releases import release
from cachesvc_client.kinds.frames.versions import is_known

from .harness import SCALAR, run

pytestmark = pytest.mark.compiles


class Programs:
    """A builder, the process that recorded its frames, and services of both."""

    def __init__(self, place: Path, **variables: str) -> None:
        key = SigningKey.generate()
        key.save(place / "signing.key")
        self._variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": str(key.public)}
        self._bundle = place / "recorded.cachesvc"
        self.run("compile", place / "builder", str(place / "signing.key"), **variables)
        recorded = self.run("record", place / "recorder", str(place / "signing.key"), **variables)
        self.not_recorded: list[str] = recorded["not_recorded"]

    def run(self, what: str, place: Path, more: str, **variables: str) -> dict[str, Any]:
        arguments = ("frames_reads.py", what, str(self._bundle), more)
        return run(*arguments, place=place, prepared=True, **self._variables, **variables).answer


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    import torch

    if not is_known(torch.__version__):
        pytest.skip(f"no frames on torch {torch.__version__}")
    return Programs(tmp_path_factory.mktemp("reads"))


BY_ENVIRONMENT = {"absent_variable", "variable_by_getenv", "variable_in_environment", "computed_variable"}
"""Programs whose frames Dynamo guards by the whole environment up to torch 2.12: two hosts differ in that."""


def test_an_unchanged_program_starts_without_traces(tmp_path: Path, programs: Programs) -> None:
    import torch

    served = programs.run("serve", tmp_path, "nothing")["programs"]
    if release(torch.__version__) in ("2.11", "2.12"):
        served = {name: one for name, one in served.items() if name not in BY_ENVIRONMENT}
    assert [name for name, one in served.items() if one["compilations"]] == []
    assert {name: one["why"] for name, one in served.items() if one["traces"]} == {}, programs.not_recorded
    assert programs.not_recorded == []


def test_a_change_in_the_service_is_traced_with_right_numbers(tmp_path: Path, programs: Programs) -> None:
    served = programs.run("serve", tmp_path, "change")["programs"]
    assert [name for name, one in served.items() if one.get("failed")] == []
    assert {name: one for name, one in served.items() if one["difference"] > 1e-4 or not one["traces"]} == {}


def test_a_change_in_the_builder_is_traced_with_right_numbers(tmp_path: Path, tmp_path_factory: Any) -> None:
    changed = Programs(tmp_path_factory.mktemp("changed"), CHANGED="1")
    served = changed.run("serve", tmp_path, "nothing")["programs"]
    assert {name: one["difference"] for name, one in served.items() if one["difference"] > 1e-4} == {}
