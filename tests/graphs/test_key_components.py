"""Test that missed keys are compared with installed ones, and that the differences are described in words."""

from __future__ import annotations

import sys
import types

import pytest

from cachesvc_client.graphs.key_components import (
    MAX_INPUTS,
    Recorder,
    component_differences,
    install_hooks,
    parse_lines,
)
from cachesvc_client.kinds.inductor import KIND
from cachesvc_client.wire.manifest.key_components import MAX_KEYS, combine

TENSOR = (
    "TensorMetadata(dtype=torch.float32, shape=torch.Size([{batch}, 4]), stride=(4, 1), "
    "device=device(type='cuda', index={index}), layout=torch.strided, storage_offset=0)"
)


def lines(
    digest: str = "aa", batch: int = 2, index: int = 0, grad: bool = False, **config: object
) -> list[str]:
    """Return the lines as torch 2.11 and 2.13 write them (recorded in both)."""
    return [
        f"[{digest}code] gm: GraphModule()\n\n\n\ndef forward(self, x):\n    return (x,)\n",
        f"[in{batch}{index}] example_inputs[0]: " + TENSOR.format(batch=batch, index=index),
        "[kw] fx_kwargs[is_inference]: True",
        "[fn] fx_kwargs[get_decomp_fn]: <function select_decomp_table at 0x7f110cd9d8a0>",
        f"[g{grad}] grad_enabled: {grad}",
        "[mm] cuda_matmul_settings: ('none', True, True)",
        "[tv] torch_version: \ufffdM\ufffd+",
        "[tag] cache_key_tag: ",
        *(f"[{value}] inductor_config[{name.replace('__', '.')}]: {value}" for name, value in config.items()),
    ]


def differences(mine: list[str], *theirs: list[str]) -> list[str]:
    entries = combine({f"f{number}": parse_lines(one) for number, one in enumerate(theirs)})
    rows = component_differences({"fmine": parse_lines(mine)}, [entries])
    return [f"{row.component}: {row.here} | {row.entry}" for row in rows]


def test_equal_keys_differ_in_nothing() -> None:
    assert differences(lines(max_autotune=False), lines(max_autotune=False)) == []
    elsewhere = [line.replace("0x7f110cd9d8a0", "0x7fffffffffff") for line in lines()]
    assert differences(lines(), elsewhere) == [], "an address is no difference: PyTorch's digest decides"


@pytest.mark.parametrize(
    ("mine", "line"),
    [
        (lines(max_autotune=True), "inductor config: max_autotune: True | False"),
        (lines(max_autotune=False, grad=True), "grad mode: True | False"),
        (
            lines(max_autotune=False, batch=8),
            "input 0: float32[8, 4] strides (4, 1) cuda:0 | float32[2, 4] strides (4, 1) cuda:0",
        ),
        (
            lines(max_autotune=False, index=1),
            "input 0: float32[2, 4] strides (4, 1) cuda:1 | float32[2, 4] strides (4, 1) cuda:0",
        ),
        (
            [
                one.replace("_offset=0", "_offset=0, requires_grad=True")
                for one in lines(batch=8, max_autotune=False)
            ],
            "input 0: float32[8, 4] strides (4, 1) cuda:0, requires grad | "
            "float32[2, 4] strides (4, 1) cuda:0",
        ),
        (lines("bb", max_autotune=False), "graph: another #bbcode | another #aacode"),
    ],
)
def test_one_change_is_one_line(mine: list[str], line: str) -> None:
    assert differences(mine, lines(max_autotune=False)) == [line]


def test_the_cause_comes_before_its_consequences() -> None:
    mine = lines("bb", batch=8, grad=True, triton__cudagraphs=True)
    names = [row.partition(":")[0] for row in differences(mine, lines(triton__cudagraphs=False))]
    assert names == ["grad mode", "inductor config", "input 0", "graph"]


def test_the_nearest_key_of_the_same_layer_is_compared() -> None:
    far, near = lines("cc", batch=64, index=3, a=1), lines("bb", batch=2, a=1)
    assert [row.partition(":")[0] for row in differences(lines(a=1), far, near)] == ["graph"]
    entries = combine({"aother": parse_lines(lines(a=2))})
    assert component_differences({"fmine": parse_lines(lines(a=1))}, [entries]) == []


def test_an_installed_key_is_not_compared() -> None:
    entries = combine({"fmine": parse_lines(lines(a=2)), "fother": parse_lines(lines(a=3))})
    assert component_differences({"fmine": parse_lines(lines(a=1))}, [entries]) == []


def test_the_number_of_recorded_components_is_bounded() -> None:
    recorder = Recorder()
    for number in range(MAX_KEYS + 10):
        recorder.note_lookup(
            f"f{number}",
            missed=lambda: True,
            lines=lambda: [f"[x] example_inputs[{part}]: {part}" for part in range(100)],
        )
    assert len(recorder.missed) == MAX_KEYS
    assert {len(texts) for texts in recorder.missed.values()} == {MAX_INPUTS}
    assert recorder.facts(["f1", "unknown"]).keys.keys() == {"f1"}
    assert recorder.facts(["unknown"]) is None and Recorder().facts() is None


def test_odd_lines_and_errors_disturb_nothing() -> None:
    recorder = Recorder()

    def broken() -> list[str]:
        raise RuntimeError("PyTorch changed")

    recorder.note_lookup("f1", missed=lambda: True, lines=broken)
    recorder.note_lookup([], missed=lambda: True, lines=list)
    recorder.note_lookup(None, missed=lambda: int("no"), lines=list)
    recorder.note_lookup("f2", missed=lambda: False, lines=broken)
    assert recorder.missed == {} and recorder.seconds == 0
    odd = ["", "no line", "[x]", "[x] : y", "[x] " + "n" * 300 + ": y", "[ab] ok: " + "v" * 500]
    assert parse_lines(odd) == {"ok": "another #ab"}


def test_a_torch_without_these_places_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    for name in ("torch._inductor.codecache", "torch._functorch._aot_autograd.autograd_cache"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    install_hooks(recorder)
    assert recorder.missed == {}


def test_this_torch_has_the_places() -> None:
    """The test fails when a new torch moves the places: then a miss would not be explained."""
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import codecache

    assert isinstance(vars(codecache.FxGraphCache)["load_with_key"], staticmethod)
    assert hasattr(autograd_cache, "_get_debug_lines_for_cache_key") or hasattr(
        autograd_cache, "autograd_cache_key"
    )
    assert KIND.folder.variable == "TORCHINDUCTOR_CACHE_DIR", (
        "the variable that a search for a missing file reads"
    )


def components(**parts: str) -> list[str]:
    return [
        *lines(),
        *(f"[aa{number}] {name}: {value}" for number, (name, value) in enumerate(parts.items())),
    ]


def test_an_entry_of_an_older_builder_is_reported_as_such() -> None:
    """Up to torch 2.12, cachesvc puts these parts into the keys; an older cachesvc did not."""
    mine = components(
        autocast_state="{'cpu': 'torch.bfloat16'}",
        default_dtype="torch.float32",
        cpp_runtime_thread_count="2",
    )
    [line] = differences(mine, lines())
    assert line == (
        "builder: newer | published before cachesvc put the dtype of autocast and the default dtype and the "
        "number of CPU threads into PyTorch's key: warm again"
    )


def test_the_age_of_the_builder_comes_before_other_differences() -> None:
    reported = differences([*components(default_dtype="torch.float32"), "[g1] grad_enabled: True"], lines())
    assert [row.partition(":")[0] for row in reported] == ["builder", "grad mode"]


def test_a_part_that_a_new_builder_omits_says_nothing_of_its_age() -> None:
    """The parts for autocast are in a key only if autocast is on."""
    mine = components(default_dtype="torch.float32", autocast_state="{'cpu': 'torch.bfloat16'}")
    assert differences(mine, components(default_dtype="torch.float32")) == []
    assert differences(lines(), lines()) == [], "a torch whose lines hold none of the parts"
