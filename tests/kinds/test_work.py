"""Test what each kind costs a start, computed from the counters."""

from __future__ import annotations

from cachesvc_client.hooks.counters import Observation, TorchWork
from cachesvc_client.kinds import own_kinds
from cachesvc_client.wire.requests.reports import KindWork


def work_by_kind(observed: Observation, seconds: float) -> dict[str, KindWork]:
    return {kind.name: cost for kind in own_kinds() if (cost := kind.cost(observed, seconds)) is not None}


def test_seconds_by_kind_are_not_counted_twice():
    observation = Observation(
        torch=TorchWork(graphs_compiled=2, cpp_builds=1, triton_compilations=3, worker_jobs=4),
        counts={
            "torch_extensions": {"builds": 6},
            "tilelang": {"compilations": 2},
            "flashinfer": {"builds": 4},
            "helion": {"searches": 2},
        },
        tuning_runs=7,
        tuned_by_kinds=2,
        seconds={
            "triton_compilations": 2.0,
            "tuning_runs": 1.0,
            "torch_extensions.runs": 8.0,
            "tilelang.compilations": 3.0,
            "flashinfer.runs": 5.0,
            "helion.searches": 4.0,
        },
    )
    assert work_by_kind(observation, 9.0) == {
        "inductor": KindWork(3, 5, 7.0),
        "triton": KindWork(7, 0, 2.0),
        "torch_extensions": KindWork(6, 0, 8.0),
        "tilelang": KindWork(2, 0, 3.0),
        "flashinfer": KindWork(4, 0, 5.0),
        "helion": KindWork(0, 2, 4.0),
    }
    assert work_by_kind(Observation(), 0.0) == dict.fromkeys(
        ("inductor", "triton", "torch_extensions", "tilelang", "flashinfer", "helion"), KindWork()
    )
