"""Test that AOTAutograd's key of a graph that is compiled ahead of time is the same in every process."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from cachesvc_client.environment import releases
from cachesvc_client.graphs.backend_names import forget_backend_name, forget_hash
from cachesvc_client.hooks import imports
from tests.e2e.harness import SCALAR, run

RELEASE = tuple(int(part) for part in (releases.torch()[0] or "0.0").split(".")[:2])


@dataclass(frozen=True)
class _Config:
    precompile_backend_id: str | None
    num_params_buffers: int = 3


def _details(config: object) -> SimpleNamespace:
    details = SimpleNamespace()

    def init(self: SimpleNamespace, value: object) -> None:
        self.aot_config = value

    forget_backend_name(imports.Call(init, (details, config), {}))
    return details


def test_the_name_is_left_out_of_the_key_and_stays_in_pytorchs_configuration() -> None:
    config = _Config("__compiled_fn_1_3f2a")
    assert _details(config).aot_config == _Config(None)
    assert config.precompile_backend_id == "__compiled_fn_1_3f2a"


def test_a_configuration_without_a_name_stays_the_same_object() -> None:
    for config in (_Config(None), SimpleNamespace(), None):
        assert _details(config).aot_config is config


@pytest.mark.skipif(RELEASE < (2, 9), reason="torch 2.8 compiles nothing ahead of time so")
def test_two_processes_have_one_key(tmp_path) -> None:
    """The second process has an empty folder of its own. Without the hook both keys differ, from 2.13 on."""
    answers = [
        run("ahead_of_time.py", hook, place=tmp_path / str(number), prepared=True, **SCALAR).answer
        for number, hook in enumerate(("hook", "hook", "", ""))
    ]
    assert answers[0]["keys"] == answers[1]["keys"] != []
    assert (answers[2]["keys"] != answers[3]["keys"]) == (RELEASE >= (2, 13))
    assert all(answer["difference"] == 0.0 for answer in answers)


def test_a_mesh_is_pickled_without_pythons_hash() -> None:
    state = {"_device_type": "cpu", "_flatten_rank_map": (0, 1), "_hash": 2973606998932598271}
    call = imports.Call(lambda _mesh: {**state}, (SimpleNamespace(),), {})
    assert forget_hash(call) == {"_device_type": "cpu", "_flatten_rank_map": (0, 1)}
