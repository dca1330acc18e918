"""Test the model that a fresh process builds, calls and compares, in this process and without compiling."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cachesvc.warm.spec.plan import plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc.warm.worker.user_code import UserCodeError
from cachesvc_client.canary.tolerance import Tolerance

from .conftest import TINY

torch = pytest.importorskip("torch")

from cachesvc.warm.worker.factory_model import FactoryModel, tensors_of, tolerance_of  # noqa: E402


@pytest.fixture
def build_model(tmp_path: Path, monkeypatch):
    """Return a function that makes a model from the body of a target."""
    monkeypatch.syspath_prepend(str(TINY))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    monkeypatch.chdir(tmp_path)

    def make(body: str, more: str = "") -> FactoryModel:
        text = f'name = "a/b"\n[[target]]\nid = "x"\nruns = 2\n{body}\n{more}'
        if "device" not in body:
            text = text.replace("runs = 2", 'runs = 2\ndevice = "cpu"')
        return FactoryModel(plan(parse_spec(text, tmp_path / "warm.toml"))[0])

    yield make
    sys.modules.pop("models", None)


X = "inputs = {a = {x = {shape = [4, 8]}}}"
TINY_TARGET = f'factory = "models:tiny"\n{X}'

MISTAKES = {
    "number": ('factory = "models:number"', "models:number returned int: a module or callable is expected"),
    "raising": ('factory = "models:raising"', "models:raising raised ValueError: no checkpoint"),
    "reading": ('factory = "models:reading"', 'weights.bin\'; targets run in an empty folder: set cwd = "."'),
    "absent": ('factory = "models:absent"', "models:absent: models has no function absent"),
    "module": ('factory = "nomodels:x"', "nomodels:x: cannot import nomodels"),
    "no inputs": ('factory = "models:tiny"', "models:tiny gives no inputs, and the spec has none"),
    "arguments": (f'factory = "models:tiny"\nargs = {{depth = 1}}\n{X}', "models:tiny raised TypeError"),
    "compiled": (f'factory = "models:compiled"\n{X}', "returned a compiled module"),
    "device": (f'device = "cuda:77"\n{TINY_TARGET}', "cuda:77"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_faulty_factory_is_reported_in_one_line(build_model, mistake):
    if mistake == "device" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA devices")
    body, part = MISTAKES[mistake]
    with pytest.raises(UserCodeError) as error:
        build_model(body)
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_inputs_that_do_not_fit_are_named(build_model):
    model = build_model('factory = "models:tiny"\ninputs = {wide = {x = {shape = [4, 9]}}}')
    with pytest.raises(UserCodeError, match=r"the eager model with inputs 'wide' raised RuntimeError"):
        model.first_calls(model.module, "the eager model")


def test_equal_jobs_have_equal_weights_and_inputs_and_seeds_change_them(build_model):
    first, second = build_model(TINY_TARGET).describe(), build_model(TINY_TARGET).describe()
    assert first == second
    other = build_model(TINY_TARGET, "seed = 1").describe()
    assert other.weights != first.weights
    assert (other.digest, other.inputs) == (first.digest, first.inputs)
    assert build_model('factory = "models:unseeded"\n' + X).describe().weights != first.weights


def test_dtype_and_arguments_reach_the_model(build_model):
    model = build_model(f'{TINY_TARGET}\nargs = {{width = 8}}\ndtypes = ["bfloat16"]')
    assert model.module.first.weight.dtype == torch.bfloat16
    assert model.inputs("a")[1]["x"].dtype == torch.bfloat16
    assert model.describe().dtype == "bfloat16"
    assert not model.module.training


def test_every_form_of_input(build_model):
    model = build_model(
        'factory = "models:tiny"\n[target.inputs.a]\n"*" = [{shape = [2, 8], dynamic = [0]}]\nscale = 2.0\n'
        'ids = {shape = [50], dtype = "int64", low = 3, high = 5}\nmask = {shape = [2], dtype = "bool"}\n'
        'zeros = {shape = [2], fill = "zeros"}\ncount = {shape = [2, 2], fill = "arange", dtype = "int32"}\n'
        "unit = {shape = [50], low = 0, high = 1}\nmany = [{shape = []}, 1]\n"
        '[target.inputs]\ncalled = "models:made_inputs"\n'
    )
    (x,), kwargs = model.inputs("a")
    assert x._dynamo_dynamic_indices == {0}
    assert (kwargs["scale"], kwargs["many"][1], kwargs["many"][0].shape) == (2.0, 1, ())
    assert set(kwargs["ids"].tolist()) == {3, 4}
    assert kwargs["mask"].dtype == torch.bool
    assert kwargs["count"].tolist() == [[0, 1], [2, 3]]
    assert kwargs["zeros"].tolist() == [0, 0]
    assert 0 <= kwargs["unit"].min() < kwargs["unit"].max() < 1
    args, kwargs = model.inputs("called")
    assert (len(args), kwargs) == (1, {"scale": 3.0})


def test_a_training_step_gives_gradients_and_inference_does_not_make_them(build_model):
    model = build_model('factory = "models:breaking"\nkind = "training"')
    outputs = model.outputs(model.module, "default", "the eager model")
    assert len(outputs) == 1 + 4
    assert model.module.training
    plain = build_model(TINY_TARGET)
    assert len(plain.outputs(plain.module, "a", "the eager model")) == 1
    assert plain.module.first.weight.grad is None


def test_dropout_with_another_seed_gives_another_output(build_model):
    model = build_model('factory = "models:breaking"\nkind = "training"')
    first, again = (model.outputs(model.module, "default", "eager") for _ in range(2))
    other = model.outputs(model.module, "default", "eager", seed=1)
    assert model.compare(again, first).passed
    assert not model.compare(other, first).passed


def test_the_tolerance_is_declared_or_that_of_the_dtype_of_the_computation():
    def tolerance(keys: str, dtype: str) -> Tolerance:
        text = f'name = "a/b"\n[[target]]\nid = "x"\n{TINY_TARGET}\n{keys}\n'
        return tolerance_of(plan(parse_spec(text, Path("/x/warm.toml")))[0], dtype)

    assert tolerance("", "float32").rtol < tolerance("", "bfloat16").rtol
    for keys in ('dtypes = ["bfloat16"]', 'autocast = "bfloat16"'):
        assert tolerance(keys, "float32") == tolerance("", "bfloat16")
    assert tolerance("tolerance = {atol = 2}", "float32") == Tolerance(0.0, 2.0)


def test_a_comparison_uses_the_tolerance_and_refuses_other_shapes_and_nan(build_model):
    model = build_model(TINY_TARGET)
    ones = torch.ones(3)
    assert model.compare([ones + 1e-4], [ones]).passed
    assert not model.compare([ones + 1e-2], [ones]).passed
    assert not model.compare([torch.ones(4)], [ones]).passed
    assert not model.compare([ones, ones], [ones]).passed
    assert not model.compare([ones * math.nan], [ones]).passed
    assert model.compare([ones * math.nan], [ones * math.nan]).passed
    assert model.compare([ones * math.inf], [ones * math.inf]).passed
    assert not model.compare([ones * math.inf], [ones]).passed
    looser = replace(model.job, dtype="bfloat16")
    model.job = looser
    assert model.compare([ones + 1e-2], [ones]).passed


def test_grad_modes_are_applied(build_model):
    for mode, expected in (
        ("no_grad", (False, False)),
        ("inference_mode", (False, True)),
        ("grad", (True, False)),
    ):
        model = build_model(f'factory = "models:mode"\ngrad = "{mode}"\n{X}')
        output = model.outputs(model.module, "a", "eager")[0]
        assert tuple(bool(flag) for flag in output.tolist()) == expected


def test_tensors_are_found_in_every_form_of_output():
    one = torch.ones(1)
    assert len(list(tensors_of({"a": one, "b": (one, [one], None, 3)}))) == 3
