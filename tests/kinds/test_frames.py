"""Test the kind `frames`: a frame is given where all that decides it is equal, and traced otherwise."""

from __future__ import annotations

import enum
import hashlib
import importlib
import subprocess
import sys
import types
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.graphs import operators
from cachesvc_client.kinds.frames import KIND, stored
from cachesvc_client.kinds.frames.describe import objects
from cachesvc_client.kinds.frames.eager import EagerGraph
from cachesvc_client.kinds.frames.guards import pickles
from cachesvc_client.kinds.frames.kind import FramesState
from cachesvc_client.kinds.frames.record import graph_facts
from cachesvc_client.kinds.frames.recording import FrameRecording
from cachesvc_client.kinds.frames.replay import replayer
from cachesvc_client.kinds.kind import KindState
from cachesvc_client.kinds.testing import Example, KindConformance
from cachesvc_client.wire.digest import Digest
from tests.releases import TORCH

CONTENT = b"a pickle"
NAME = hashlib.sha256(CONTENT).hexdigest() + ".frames"


class TestConformance(KindConformance):
    kind = KIND
    examples = (Example(NAME, CONTENT, last=True),)
    others = (f"x/{NAME}", NAME.upper(), NAME.removesuffix(".frames"), f"{NAME}.tmp", ".0123.tmp")

    def use(self, state: KindState, root: Path) -> set[str]:
        assert isinstance(state, FramesState)
        state.accept(root, [NAME])
        assert state._replayer is not None
        state._replayer.used[NAME] = None  # what giving a frame records
        return {NAME}

    def allowed(self, state: KindState) -> Collection[Path]:
        assert isinstance(state, FramesState)
        return list(state._replayer._files) if state._replayer is not None else ()


def test_only_the_content_that_the_name_says_is_read(tmp_path: Path) -> None:
    """Also a file that was accepted may be another one when it is read."""
    content = stored.FramesFile([], {"graph": b"code"}, {"graph": EagerGraph(b"text")})
    name = stored.write(tmp_path, content)
    assert stored.read(tmp_path / name) == content
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b".")
    with pytest.raises(ValueError, match="its content is not what its name says"):
        stored.read(tmp_path / name)


def test_a_file_that_was_replaced_was_not_recorded_here(tmp_path: Path) -> None:
    """What stands in its place is of unknown origin, and not signed."""
    state = FramesState()
    state._frames.written = {f"{'a' * 64}.frames"}
    assert state.made_files(tmp_path) == {f"{'a' * 64}.frames": Digest(f"sha256:{'a' * 64}")}


def test_a_file_that_is_not_there_is_another_ranks(tmp_path: Path) -> None:
    """A revision names the frames of all its ranks, and a rank has its own."""
    state = FramesState()
    (tmp_path / NAME).write_bytes(CONTENT)
    state.accept(tmp_path, [NAME, f"{'0' * 64}.frames"])
    assert state._replayer is not None and list(state._replayer._files) == [tmp_path / NAME]


def test_a_recording_of_all_is_not_replaced_by_one_beside_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one ends where its process compiles anything; the first one has what `warm` publishes."""
    module = importlib.import_module("cachesvc_client.kinds.frames.record.recorder")
    monkeypatch.setattr(module.Recorder, "install_hooks", lambda _: None)
    recording = FrameRecording(operators.RegisteredFunctions)
    recording.start()
    record = recording.recorder
    recording.start(serving=True)
    assert recording.recorder is record and not recording.may_begin


def test_a_frame_of_another_backend_is_not_recorded_and_the_reason_names_it() -> None:
    recorder = importlib.import_module("cachesvc_client.kinds.frames.record.recorder")
    record = recorder.Recorder(operators.RegisteredFunctions())
    call = types.SimpleNamespace(compiler=TestConformance.use, name="forward (model.py:7)")
    record.refuse(call)
    why = "TestConformance.use compiles it, not Inductor's backend itself"
    assert record.refused == {"forward (model.py:7)": why}


def code_of(source: str) -> types.CodeType:
    scope: dict[str, Any] = {}
    exec(compile(source, "made.py", "exec"), scope)
    code: types.CodeType = scope["f"].__code__
    return code


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("\n\ndef f(x, y=1):\n    return x + 2", True),  # another place
        ("def f(x, y=1):\n    return x + 3", False),
        ("def f(x, y=1):\n    return x - 2", False),
        ("def f(z, y=1):\n    return z + 2", False),
        ("def f(x, y):\n    return x + 2", True),  # a default value belongs to the function
    ],
)
def test_the_digest_of_code(other: str, same: bool) -> None:
    one = code_of("def f(x, y=1):\n    return x + 2")
    assert (objects.code_digest(one) == objects.code_digest(code_of(other))) is same


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has its full name from 3.11 on")
def test_a_function_is_found_and_its_change_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [helper.__code__, Holder.method.__code__, Holder.own.fget.__code__, outer().__code__]
    traced = objects.traced_functions(codes)
    assert {one.name for one in traced} == {"helper", "Holder.method", "Holder.own", "outer"}
    assert objects.changed(traced) == ""
    for target, value in (
        ("helper", lambda x: x),
        ("Holder.method", lambda _: 1),
        ("Holder.own", property(lambda _: 1)),
        ("outer", lambda: None),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"{__name__}.{target}", value)
            assert objects.changed(traced) == f"{__name__}.{target}"
    monkeypatch.setattr(helper, "__defaults__", (5,))
    assert objects.changed(traced) == f"{__name__}.helper", "a default value"


def test_code_without_a_name_stands_for_its_file() -> None:
    [traced] = objects.traced_functions([UNNAMED.__code__])
    assert (traced.module, traced.name) == (__name__, "")
    assert objects.changed([traced]) == ""
    assert objects.changed([traced._replace(digest="another")]) == f"the file of {__name__}"
    assert objects.changed([traced._replace(module="not.imported")]) == "the file of not.imported"


def test_code_of_no_file_is_refused() -> None:
    with pytest.raises(LookupError, match="is the code of no module"):
        objects.traced_functions([code_of("def f(): pass")])


def test_what_has_no_words_is_refused() -> None:
    with pytest.raises(TypeError, match="has no description"):
        objects.describe(object())
    assert objects.text_of({"b": {2, 1}, "a": (True, None)}) == objects.text_of(
        {"a": (True, None), "b": {1, 2}}
    )
    assert objects.text_of({"a": 1}) != objects.text_of({"a": True})


def test_what_a_program_may_change_has_other_words() -> None:
    assert objects.describe(Way.FIRST) != objects.describe(Way.SECOND)
    assert objects.describe({"a": helper}) == objects.describe({"a": helper})
    assert objects.describe({"a": helper}) != objects.describe({"a": outer})
    with pytest.raises(TypeError, match="has no description"):
        objects.describe({"a": object()})


def test_a_class_that_gains_an_attribute_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace looks a method up in all bases, and guards the one that it found."""

    class Derived(Holder):
        pass

    first, words = objects.class_digest(Derived), objects.describe(Derived)
    monkeypatch.setattr(Derived, "method", lambda _: 1, raising=False)
    assert objects.class_digest(Derived) != first
    assert objects.describe(Derived) != words
    assert objects.has_name(Holder) and not objects.has_name(Derived)


@pytest.mark.skipif(TORCH < (2, 11), reason="there are no frames")
@pytest.mark.parametrize("left_out", [True, False])
def test_guards_of_hooks_are_recorded_as_names_where_dynamo_checks_none(left_out: bool) -> None:
    from torch._dynamo import config
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.source import AttrSource, LocalSource
    from torch._guards import Guard

    module = AttrSource(LocalSource("self"), "layer")
    hooks = [
        Guard(AttrSource(module, name), GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT)
        for name in ("_forward_hooks", "_backward_hooks")
    ]
    other = Guard(module, GuardBuilder.TYPE_MATCH)
    with config.patch(skip_nnmodule_hook_guards=left_out):
        guards, empty = pickles.split_hooks([*hooks, other])
    if left_out:
        assert guards == [other] and empty == {module.name: ("_forward_hooks", "_backward_hooks")}
    else:
        assert guards == [*hooks, other] and empty == {}


def test_operators_of_generated_code_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = operators.RegisteredFunctions()
    frame = stored.RecordedFrame(code=None, backend=stored.Backend("", None, False))
    monkeypatch.setattr(operators, "describe_operator", lambda name, _: f"code of {name}")
    source = "a = torch.ops.lib.one\ntorch.ops.lib.two.out(a)\ntorch.ops.aten.sin.default(a)"
    source += "\n#   %f : = call_function[target=torch.ops.higher_order.flex_attention](args = ())"
    assert graph_facts.note_code(frame, source, registered) == ""
    assert frame.facts.operators.keys() == {"lib::one", "lib::two.out"}
    assert replayer._changed_operator(frame, registered) == ""
    monkeypatch.setattr(operators, "describe_operator", lambda name, _: f"{name} is another")
    assert replayer._changed_operator(frame, registered) == "operator lib::one is other code"


class Way(enum.Enum):
    FIRST = 1
    SECOND = 2


def helper(x: Any, y: Any = 4) -> Any:
    return x + y


class Holder:
    number = 2

    def method(self) -> Any:
        return self

    @property
    def own(self) -> Any:
        return self


def outer() -> Any:
    def inner() -> int:
        return 7

    return inner


UNNAMED = (lambda: lambda: 3)()


@pytest.mark.compiles
@pytest.mark.skipif(TORCH < (2, 11), reason="there are no frames")
def test_the_settings_have_the_rank_where_it_is_in_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are given without PyTorch's keys, so what these hold of a job is among the settings."""
    import torch
    from torch._inductor import config

    settings = importlib.import_module("cachesvc_client.kinds.frames.describe.ambient").settings

    def as_rank(rank: int) -> dict[str, str]:
        monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: rank)
        return dict(settings({}))

    alone = as_rank(0)
    assert alone == as_rank(1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert as_rank(0) == as_rank(1)
    with config.patch(bucket_all_gathers_fx="all"):
        assert as_rank(0) != as_rank(1)


@pytest.mark.compiles
@pytest.mark.skipif(TORCH < (2, 11), reason="there are no frames")
def test_a_reason_names_the_setting_that_differs() -> None:
    changes = {
        "torch.set_default_dtype(torch.float64)": "the default dtype",
        "torch.backends.cuda.enable_flash_sdp(False)": "the allowed attention backends",
        "torch._dynamo.config.specialize_int = True": "torch._dynamo.config.specialize_int",
        "torch.set_float32_matmul_precision('medium')": "float32 matmul precision",
        "torch._inductor.config.max_autotune = True": "inductor_config",
        "torch.use_deterministic_algorithms(True)": "deterministic_algorithms_settings",
    }
    program = (
        "import torch; from cachesvc_client.kinds.frames.describe import ambient\n"
        f"for change in {[*changes]}:\n"
        "    recorded = ambient.settings({})\n"
        "    exec(change)\n"
        "    print(ambient.setting_words(ambient.changed_settings(recorded, ambient.settings({}))))"
    )
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    for words, line in zip(changes.values(), said.splitlines(), strict=True):
        assert words in line, said


@pytest.mark.skipif(TORCH < (2, 11), reason="there are no frames")
def test_a_function_without_a_frame_has_a_reason(tmp_path: Path) -> None:
    """A comment above a function moves its lines: then the start traces, and says why."""
    from torch._dynamo.package import SerializedCode

    from cachesvc_client.kinds.frames.arguments import FrameCall

    def code_of(source: str) -> types.CodeType:
        names: dict[str, Any] = {}
        exec(compile(source, str(tmp_path / "model.py"), "exec"), names)
        return next(value.__code__ for name, value in names.items() if name in ("forward", "other"))

    source = "def forward(x):\n    return x + 1\n"
    code = SerializedCode.from_code_object(code_of(source))
    frame = stored.RecordedFrame(code, stored.Backend("", None, False))
    name = stored.write(tmp_path, stored.FramesFile([frame], {}, {}))
    replays = replayer.FrameReplayer(operators.RegisteredFunctions(), lambda _: None)
    replays.accept(tmp_path / name)
    for text in (f"# a comment\n{source}", source.replace("1", "2"), source.replace("forward", "other")):
        assert replays.replay(FrameCall(code_of(text), {}, {}, None, False, None, True), None) is None
    moved, changed, other = replays.reasons
    assert moved == "forward (model.py:2): other code, or other lines, than its frames were recorded of"
    assert changed == "forward (model.py:1): other code, or other lines, than its frames were recorded of"
    assert other == "other (model.py:1): no frame of it was recorded"
