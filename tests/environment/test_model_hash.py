"""Test model hashes and signatures: they are equal for equal work, in every process, and differ for different
work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cachesvc_client.environment.model_hash import compile_options, input_signature, model_hash
from cachesvc_client.wire.codec import canonical

torch = pytest.importorskip("torch")
nn = torch.nn

MODEL = """
import torch
from torch import nn

class Config:
    def __init__(self, **more):
        self.values = {"hidden": 8, "kinds": {"b", "a", "c"}, "dtype": torch.float32, **more}
    def to_dict(self):
        return self.values

class Act(nn.Module):
    def extra_repr(self):
        return f"fn={self.forward.__func__!r} at"
    def forward(self, x):
        return x.relu()

class Net(nn.Module):
    def __init__(self, width=8, bias=True, **config):
        super().__init__()
        self.config = Config(**config)
        self.first = nn.Linear(8, width, bias=bias)
        self.act = Act()
        self.tied = nn.Linear(8, width, bias=False)
        self.register_buffer("scale", torch.ones(3))
    def forward(self, x):
        return self.act(self.first(x)) + self.tied(x)
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    (tmp_path / "net_under_test.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("net_under_test", None)
    import net_under_test

    yield net_under_test.Net
    sys.modules.pop("net_under_test", None)


def test_a_hash_is_equal_in_every_process_folder_and_hash_seed(net, tmp_path):
    program = (
        "import net_under_test, cachesvc_client.environment.model_hash as w; "
        "print(w.model_hash(net_under_test.Net()))"
    )
    hashes = {str(model_hash(net()))}
    for seed in ("0", "77"):
        folder = tmp_path / f"elsewhere{seed}"
        folder.mkdir()
        (folder / "net_under_test.py").write_text(MODEL)
        environ = {**os.environ, "PYTHONHASHSEED": seed, "HOME": str(folder)}
        environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, sys.path)])
        result = subprocess.run(
            [sys.executable, "-c", program],
            env=environ,
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        hashes.add(result.stdout.strip())
    assert len(hashes) == 1


def test_values_of_parameters_do_not_count(net):
    torch.manual_seed(1)
    one = model_hash(net())
    torch.manual_seed(2)
    assert model_hash(net()) == one


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net(width=9),
        lambda net: net(bias=False),
        lambda net: net().eval(),
        lambda net: net().half(),
        lambda net: net().requires_grad_(False),
        lambda net: net().to("meta"),
        lambda net: net(hidden=9),
        lambda net: net(kinds={"a", "b"}),
        lambda net: tied(net()),
        lambda net: transposed(net()),
        lambda net: nn.Sequential(net()),
    ],
)
def test_a_change_of_the_model_changes_the_hash(net, change):
    assert model_hash(change(net)) != model_hash(net())


def tied(model):
    model.tied.weight = model.first.weight
    return model


def transposed(model):
    model.first.weight.data = model.first.weight.data.t().contiguous().t()
    return model


def test_the_source_counts_and_its_path_does_not(net, tmp_path):
    before = model_hash(net())
    assert model_hash(net(_name_or_path="/srv/one", cache_dir="/a", transformers_version="9")) == before
    (tmp_path / "net_under_test.py").write_text(MODEL + "\n# another line\n")
    assert model_hash(net()) != before


def test_a_compiled_module_has_the_hash_of_the_module_that_it_wraps(net):
    model = net()
    assert model_hash(torch.compile(model)) == model_hash(model)


def test_modules_whose_methods_raise_are_no_error():
    class Rude(nn.Module):
        @property
        def config(self):
            return {"x": object(), "deep": self}

        def extra_repr(self):
            raise RuntimeError("no")

    assert model_hash(Rude()) == model_hash(Rude())


def test_lazy_parameters_have_no_shape_yet():
    assert model_hash(nn.LazyLinear(3)) == model_hash(nn.LazyLinear(3))


def test_functions_have_a_hash():
    assert model_hash(tied) == model_hash(torch.compile(tied, backend="eager"))
    assert model_hash(tied) != model_hash(transposed)


def test_inputs_have_signatures():
    tensor = torch.ones(2, 3).t()
    torch._dynamo.mark_dynamic(tensor, 1)
    actual = input_signature(
        (tensor, [1, 2.5, None, True, "secret"]), {"mask": torch.zeros(1, dtype=torch.bool)}
    )
    facts = {
        "dtype": "float32",
        "device": "cpu",
        "requires_grad": False,
        "shape": [3, 2],
        "stride": [1, 3],
        "dynamic": [1],
    }
    assert actual["args"] == [facts, [1, 2.5, None, True, "builtins.str"]]
    assert actual["kwargs"]["mask"]["dtype"] == "bool"
    assert canonical(actual) == canonical(actual)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1: {2}}, b"bytes", range(3), 1j])
def test_the_signature_of_any_input_can_be_written(value):
    canonical(input_signature((value,)))


def test_an_input_that_contains_itself_is_no_error():
    loop: list = []
    loop.append(loop)
    canonical(input_signature((loop,)))


def test_options_at_their_default_are_left_out():
    assert compile_options() == compile_options(mode="default", backend="inductor", options={}) == {}
    options = compile_options(mode="max-autotune", dynamic=False, fullgraph=True, options={"b": 2, "a": tied})
    assert options["options"] == [f"a={__name__}.tied", "b=2"]
    assert (options["mode"], options["dynamic"], options["fullgraph"]) == ("max-autotune", False, True)
    assert compile_options(backend=tied) == {"backend": f"{__name__}.tied"}
