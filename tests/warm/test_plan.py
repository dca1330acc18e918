"""Test the plan: targets x dtypes x modes, and which changes of a spec make another workload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachesvc.warm.report.render import plan_lines
from cachesvc.warm.spec.plan import Job, plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import SpecError

TEXT = """\
name = "team/bert"
[[target]]
id = "bert"
factory = "models:bert"
dtypes = ["float32", "bfloat16"]
modes = ["default", "max-autotune"]
[target.inputs.short]
x = {shape = [1, 2]}
[[target]]
id = "own"
factory = "models:own"
[[target]]
id = "job"
script = "job.py"
args = ["a"]
"""


LEVELS = """\
name = "team/bert"
[[target]]
id = "bert"
factory = "models:bert"
dtypes = ["float32"]
march = ["x86-64-v2", "x86-64-v3"]
env = {A = "1"}
"""


@pytest.fixture
def parse(tmp_path: Path):
    (tmp_path / "job.py").write_text("")
    return lambda text: parse_spec(text, tmp_path / "warm.toml")


def test_every_dtype_with_every_mode_in_the_order_of_the_spec(parse):
    assert [str(job.target) for job in plan(parse(TEXT))] == [
        "bert/float32/default",
        "bert/float32/max-autotune",
        "bert/bfloat16/default",
        "bert/bfloat16/max-autotune",
        "own/default",
        "job",
    ]


def test_each_level_of_a_target_is_an_entry_of_that_target(parse):
    second, third = plan(parse(LEVELS))
    assert str(second.target) == str(third.target) == "bert/float32/default"
    assert [str(second.label), third.level] == ["bert/float32/default/x86-64-v2", "x86-64-v3"]
    assert third.env == {"A": "1", "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3", "ATEN_CPU_CAPABILITY": "avx2"}
    assert third.options["env.ATEN_CPU_CAPABILITY"] == "avx2" and workload(second).key != workload(third).key
    for names in (["bert/float32/default/x86-64-v3"], ["bert/float32/default", "bert"]):
        assert third in plan(parse(LEVELS), names)
    assert plan(parse(LEVELS), ["bert/float32/default/x86-64-v2"]) == (second,)
    with pytest.raises(SpecError, match="did you mean 'bert/float32/default/x86-64-v3'"):
        plan(parse(LEVELS), ["bert/float32/default/x86-64-v4"])


def test_one_level_has_the_name_of_its_target(parse):
    (job,) = plan(parse(LEVELS.replace('"x86-64-v2", ', "")))
    assert (job.label, job.level) == (job.target, "x86-64-v3")


def test_a_filter_selects_targets(parse):
    spec = parse(TEXT)
    assert [str(job.target) for job in plan(spec, ["job", "bert/bfloat16/default"])] == [
        "bert/bfloat16/default",
        "job",
    ]
    with pytest.raises(SpecError, match=r"no target 'bret'.*did you mean 'bert'"):
        plan(spec, ["bret"])


def workload(job: Job, model: bytes = b"model"):
    return job.workload(model=Digest.of(model), script=None, inputs={"a": {"args": []}}, dtype="float32")


def key(spec) -> Digest:
    return workload(plan(spec)[0]).key


CHANGES = {
    "mode": ('modes = ["default", "max-autotune"]', 'modes = ["reduce-overhead"]'),
    "dynamic": ("[target.inputs.short]", "dynamic = true\n[target.inputs.short]"),
    "fullgraph": ("[target.inputs.short]", "fullgraph = true\n[target.inputs.short]"),
    "grad": ("[target.inputs.short]", 'grad = "inference_mode"\n[target.inputs.short]'),
    "training": ("[target.inputs.short]", 'kind = "training"\n[target.inputs.short]'),
    "autocast": ("[target.inputs.short]", 'autocast = "bfloat16"\n[target.inputs.short]'),
    "env": ("[target.inputs.short]", 'env = {OMP_NUM_THREADS = "1"}\n[target.inputs.short]'),
    "device": ("[target.inputs.short]", 'device = "cpu"\n[target.inputs.short]'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_fields_that_decide_the_compilation_make_another_workload(parse, change):
    assert key(parse(TEXT)) != key(parse(TEXT.replace(*CHANGES[change], 1)))


def test_fields_that_only_measure_do_not(parse):
    more = "runs = 99\ntimeout = 5\ntolerance = {rtol = 1.0}\n[target.inputs.short]"
    assert key(parse(TEXT)) == key(parse(TEXT.replace("[target.inputs.short]", more)))
    assert key(parse(TEXT)) == key(parse(TEXT.replace("[[target]]", "[defaults]\nruns = 2\n[[target]]", 1)))


def test_another_model_is_another_workload(parse):
    job = plan(parse(TEXT))[0]
    assert workload(job).key != workload(job, b"other").key


def test_jobs_are_written_as_json_and_read_back(parse):
    for job in plan(parse(TEXT + LEVELS.partition("\n")[2].replace('"bert"', '"levels"'))):
        assert codec.build(Job, json.loads(json.dumps(codec.plain(job)))) == job


def test_a_dry_run_shows_every_entry(parse):
    text = plan_lines(plan(parse(TEXT)))
    assert text[0] == (
        "bert/float32/default: inference of models:bert, inputs short (grad_mode=no_grad, device=auto)"
    )
    assert "mode=max-autotune" in text[1]
    assert text[-2].startswith("job: script of ")
    assert text[-1] == "6 entries would be made"
    assert plan_lines(plan(parse(TEXT))[:1])[-1] == "1 entry would be made"
