"""Test for which frames an option of the compile, or a setting of Dynamo's, decides nothing; and the words of
a difference."""

from __future__ import annotations

import copy
import traceback
from typing import Any

import pytest

from cachesvc_client.kinds.frames import stored
from cachesvc_client.kinds.frames.describe import ambient, backends
from cachesvc_client.kinds.frames.guards import spoken

ERRORS, SCALARS, SIZES = (
    f"torch._dynamo.config.{name}"
    for name in ("suppress_errors", "capture_scalar_outputs", "automatic_dynamic_shapes")
)


def frame(*, breaks: bool = False, fixed: bool = True, graphs: int = 1, **backend: Any) -> Any:
    recorded = stored.Backend(**{"options": "{}", "dynamic": None, "fullgraph": False, **backend})
    one = stored.RecordedFrame(code=None, backend=recorded)
    one.output.graphs = tuple("abc"[:graphs])
    one.output.without_breaks, one.output.of_fixed_sizes = not breaks, fixed
    return one


@pytest.mark.parametrize(
    ("recorded", "here", "fits"),
    [
        ({}, {"fullgraph": True}, True),
        ({"breaks": True}, {"fullgraph": True}, False),
        ({"graphs": 2}, {"fullgraph": True}, False),
        ({"fullgraph": True}, {}, False),
        ({}, {"dynamic": False}, True),
        ({"dynamic": False}, {}, True),
        ({}, {"dynamic": True}, False),
        ({"dynamic": True}, {"dynamic": False}, False),
        ({"fixed": False}, {"dynamic": False}, False),
        ({"breaks": True}, {"dynamic": False}, False),
        ({}, {"options": "{max_autotune: bool True}"}, False),
    ],
)
def test_an_option_that_decides_nothing_of_a_frame_is_not_compared(
    recorded: dict[str, Any], here: dict[str, Any], fits: bool
) -> None:
    served = stored.Backend(**{"options": "{}", "dynamic": None, "fullgraph": False, **here})
    assert (backends.changed_backend(frame(**recorded), served) == "") is fits


@pytest.mark.parametrize(
    ("name", "recorded", "kind", "fits"),
    [
        (ERRORS, False, {}, True),
        (ERRORS, False, {"breaks": True}, False),
        (SCALARS, False, {}, True),
        (SCALARS, True, {}, False),
        (SCALARS, False, {"breaks": True}, False),
        (SIZES, True, {}, True),
        (SIZES, True, {"fixed": False}, False),
        ("torch._dynamo.config.specialize_int", False, {}, False),
    ],
)
def test_a_setting_that_decides_nothing_of_a_frame_is_not_compared(
    name: str, recorded: bool, kind: dict[str, Any], fits: bool
) -> None:
    one = frame(**kind)
    one.facts.settings = {name: ambient.short(recorded)}
    here = {name: ambient.short(not recorded)}
    assert (backends.changed_setting(one, here) == "") is fits


def test_the_line_of_a_reason_is_the_innermost_of_the_program() -> None:
    frames = [("/app/train.py", 7, "optimizer.step()"), ("/lib/torch/optim/adam.py", 90, "adam(")]
    frames.append((copy.__file__, 137, "d = id(x)"))
    stack = [traceback.FrameSummary(file, line, "f", line=code) for file, line, code in frames]
    assert spoken.line_of(stack) == " (train.py:7: optimizer.step())"
    assert spoken.line_of(stack[1:]) == "" == spoken.line_of(None)


def test_a_difference_names_the_object_and_what_differs() -> None:
    assert spoken.object_name("L['self']._modules['layers']._modules['0']._parameters['bias']") == (
        "self.layers.0.bias"
    )
    digest = "0123456789abcdef" * 4
    words = f"type torch.nn.Parameter {digest} torch.float32 cpu 8 1 requires_grad=%s Keys(CPU, AutogradCPU)"
    assert spoken.difference(words % True, words % False) == (
        "here requires_grad=False, recorded requires_grad=True"
    )
    assert spoken.difference(f"function f {digest}", f"function f {digest[::-1]}") == (
        f"here {digest[::-1][:8]}, recorded {digest[:8]}"
    )
    assert spoken.difference("list of 2", "list of 2 moved") == "here moved, recorded nothing"
