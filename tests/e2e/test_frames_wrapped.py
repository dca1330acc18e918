"""Test that models which are wrapped for several ranks start without traces, in the forward and in training,
and trace where they are wrapped otherwise. Real ranks over gloo, each on a fresh host."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachesvc_client.environment.releases import release

from .test_frames_ranks import Warmed

pytestmark = pytest.mark.compiles

DDP = {"ddp_forward", "ddp_training", "ddp_buckets", "ddp_inner"}
OTHERS = {"fsdp_training", "fsdp_blocks", "tp_training"}
FEW = {"ddp_training", "fsdp_blocks", "tp_training"}
"""A form of each wrapper, which `make test` runs; `make test-all` runs all."""
CHANGES = {
    "no_sync": ({"ddp_training"}, "require_backward_grad_sync=False"),
    "unused_parameters": ({"ddp_training"}, "find_unused_parameters=True"),
    "larger_buckets": ({"ddp_training", "ddp_buckets"}, "buckets of 1048576 and 2097152"),
    "views_of_buckets": ({"ddp_training"}, "gradient_as_bucket_view=True"),
    "no_broadcast": ({"ddp_forward"}, "broadcast_buffers=False"),
    "not_wrapped": ({"ddp_training", "fsdp_blocks"}, "DistributedDataParallel is not there"),
    "one_more_group": ({"ddp_inner", "fsdp_blocks", "tp_training"}, "process group '1' is"),
    "another_backend": (
        {"ddp_training", "fsdp_blocks", "tp_training"},
        "process group '0' is cpu:gloo, ranks",
    ),
    "mixed_precision": ({"fsdp_training", "fsdp_blocks"}, "torch.bfloat16"),
    "not_resharded": ({"fsdp_training", "fsdp_blocks"}, "here none"),
    "turned_mesh": ({"fsdp_training", "fsdp_blocks", "tp_training"}, "(1, 0)"),
    "another_mesh_name": ({"fsdp_training", "fsdp_blocks", "tp_training"}, "'halves'"),
}
"""Change -> the functions that are traced then, and a part of the reason."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(FEW, id="few"), pytest.param(DDP | OTHERS, marks=pytest.mark.long, id="all")],
)
def warmed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Warmed:
    import torch

    if release(torch.__version__) != "2.13":
        pytest.skip("other releases refuse other functions, each with a trace")
    return Warmed(tmp_path_factory.mktemp("frames_wrapped"), "frames_wrapped.py", request.param)


def test_wrapped_models_on_a_fresh_host_trace_nothing(tmp_path: Path, warmed: Warmed) -> None:
    for answer in warmed.serve(tmp_path, "nothing"):
        assert answer["state"] == "hit", answer
        work = {form: (one["traces"], one["compilations"]) for form, one in answer["forms"].items()}
        assert work == dict.fromkeys(warmed.forms, (0, 0)), answer
        assert max(one["difference"] for one in answer["forms"].values()) < 1e-4, answer


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_is_wrapped_otherwise_traces(tmp_path: Path, warmed: Warmed, change: str) -> None:
    changed, reason = CHANGES[change]
    if not (traced := changed & warmed.forms):
        pytest.skip("all forms have one that this changes")
    answers = warmed.serve(tmp_path, change, forms=traced)
    for answer in answers:
        assert {form for form, one in answer["forms"].items() if one["traces"]} == traced, answer
        assert max(one["difference"] for one in answer["forms"].values()) < 1e-4, answer
    assert reason in " ".join(line for answer in answers for line in answer["explained"]), answers


def test_a_process_alone_does_not_get_the_frames_of_two_ranks(tmp_path: Path, warmed: Warmed) -> None:
    [answer] = warmed.serve(tmp_path, "nothing", ranks=1, forms={"ddp_training", "fsdp_blocks"})
    assert all(one["traces"] and one["difference"] < 1e-4 for one in answer["forms"].values()), answer
    assert "the job is rank 0 of 1, and was rank 0 of 2" in " ".join(answer["explained"]), answer
