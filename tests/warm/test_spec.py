"""Test the warm spec: what it accepts, and that the message about a mistake names file, line, key and the
allowed values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cachesvc.warm.spec.inputs import Argument, InputSet, TensorSpec
from cachesvc.warm.spec.spec import load_spec, parse_spec
from cachesvc.warm.spec.toml_lines import line_of, lines_of
from cachesvc_client.wire.errors import SpecError

FULL = """\
name = "team/bert:v3"

[defaults]
runs = 3
env = {OMP_NUM_THREADS = "2", A = "defaults"}
tolerance = {rtol = 0.5, atol = 0.25}

[[target]]
id = "bert"
factory = "models:bert"
args = {layers = 2}
dtypes = ["float32", "bfloat16"]
modes = ["default", "max-autotune"]
dynamic = true
fullgraph = true
grad = "inference_mode"
autocast = "bfloat16"
device = "cuda:1"
tracing = "auto"
env = {A = "own"}
timeout = 60
seed = 7

[target.inputs.short]
input_ids = {shape = [1, 128], dtype = "int64", high = 1000, dynamic = [0]}
scale = 2.5
use_cache = false
"*" = [{shape = []}, [{shape = [2], fill = "ones"}]]

[target.inputs]
long = "models:long"

[[target]]
id = "train"
script = "train.py"
args = ["--steps", "2"]
files = ["data.json"]
cwd = "."
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.py", "data.json"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_a_full_spec_is_read(folder):
    (folder / "warm.toml").write_text(FULL)
    spec = load_spec(folder / "warm.toml")
    bert, train = spec.targets
    assert str(spec.name) == "team/bert:v3"
    assert bert.args == {"layers": 2}
    assert (bert.dtypes, bert.modes) == (("float32", "bfloat16"), ("default", "max-autotune"))
    assert (bert.dynamic, bert.fullgraph, bert.grad, bert.autocast) == (
        True,
        True,
        "inference_mode",
        "bfloat16",
    )
    assert (bert.runs, bert.timeout, bert.seed, bert.device) == (3, 60.0, 7, "cuda:1")
    assert bert.tracing == "auto"
    assert bert.env == {"OMP_NUM_THREADS": "2", "A": "own"}
    assert bert.tolerance == {"rtol": 0.5, "atol": 0.25}
    assert bert.inputs["long"] == InputSet(call="models:long")
    assert bert.inputs["short"] == InputSet(
        args=(
            Argument(tensor=TensorSpec(())),
            Argument(items=(Argument(tensor=TensorSpec((2,), fill="ones")),)),
        ),
        kwargs={
            "input_ids": Argument(tensor=TensorSpec((1, 128), "int64", high=1000.0, dynamic=(0,))),
            "scale": Argument(value=2.5),
            "use_cache": Argument(value=False),
        },
    )
    assert train.script == str(folder / "train.py")
    assert train.files == (str(folder / "data.json"),)
    assert (train.args, train.cwd) == (("--steps", "2"), str(folder))


def test_omitted_keys_have_the_documented_defaults(folder):
    text = 'name = "a/b"\n[[target]]\nid = "x"\nfactory = "m:f"\n'
    target = parse_spec(text, folder / "w.toml").targets[0]
    assert (target.dtypes, target.modes, target.dynamic, target.fullgraph) == ((), ("default",), None, False)
    assert (target.kind, target.grad, target.device, target.runs) == ("inference", "no_grad", "auto", 10)
    assert target.tracing == "auto"
    assert target.tolerance is None
    training = parse_spec(text + 'kind = "training"\n', folder / "w.toml").targets[0]
    assert training.grad == "grad"


HEAD = 'name = "a/b"\n[[target]]\nid = "x"\nfactory = "m:f"\n'  # Lines 1 to 4.

MALFORMED = {
    "not toml": ("name = \n", "not TOML", "line 1"),
    "no name": ('[[target]]\nid = "x"\nfactory = "m:f"\n', "name: missing", "team/bert"),
    "bad name": ('name = "Team"\n[[target]]\nid = "x"\nfactory = "m:f"', "line 1", "namespace/name"),
    "upper case name": (HEAD.replace("a/b", "A/b"), "line 1", "lower"),
    "no target": ('name = "a/b"\n', "no [[target]]", ""),
    "target is no array": ('name = "a/b"\n[target]\nid = "x"\n', "line 2", "[[target]]"),
    "unknown top key": ('title = "x"\n' + HEAD, "line 1: the spec: title: unknown key", "name"),
    "unknown key": (
        HEAD + 'mode = "default"\n',
        "line 5: target 'x': mode: unknown key",
        "did you mean 'modes'",
    ),
    "unknown default": (
        'name = "a/b"\n[defaults]\nfactory = "m:f"\n[[target]]\n',
        "line 3: defaults",
        "factory",
    ),
    "no id": ('name = "a/b"\n[[target]]\nfactory = "m:f"\n', "line 2", "id: missing"),
    "bad id": (HEAD.replace('"x"', '"x y"'), "line 3", "letters"),
    "same id": (HEAD + '[[target]]\nid = "x"\nfactory = "m:g"\n', "line 6", "earlier target"),
    "slip": (
        'name = "a/b"\n[[target]]\nid = "x"\nfactry = "m:f"\n',
        "line 4",
        "factry",
        "did you mean 'factory'",
    ),
    "neither": ('name = "a/b"\n[[target]]\nid = "x"\n', "line 3", "neither factory nor script nor vllm"),
    "both": (HEAD + 'script = "train.py"\n', "line 5", "both factory and script"),
    "factory form": (HEAD.replace("m:f", "m.f"), "line 4", "module:function"),
    "missing script": (HEAD.replace('factory = "m:f"', 'script = "no.py"'), "line 4", "no such file"),
    "script with modes": (
        HEAD.replace('factory = "m:f"', 'script = "train.py"\nmodes = ["default"]'),
        "line 5: target 'x': modes",
        "a script decides this itself",
    ),
    "mode": (HEAD + 'modes = ["max-autotun"]\n', "line 5", "did you mean 'max-autotune'?"),
    "mode in many lines": (HEAD + 'modes = [\n  "default",\n  "fast",\n]\n', "line 5", "'fast' is not known"),
    "modes as text": (HEAD + 'modes = "default"\n', "line 5", "expected a list such as"),
    "mode twice": (HEAD + 'modes = ["default", "default"]\n', "line 5", "twice"),
    "no modes": (HEAD + "modes = []\n", "line 5", "empty"),
    "dtype alias": (HEAD + 'dtypes = ["bf16"]\n', "line 5", "did you mean 'bfloat16'?"),
    "mode and options": (HEAD + 'modes = ["max-autotune"]\noptions = {a = 1}\n', "line 6", "not both"),
    "dynamic": (HEAD + 'dynamic = "yes"\n', "line 5", 'true, false, "auto"'),
    "flag": (HEAD + "fullgraph = 1\n", "line 5", "true or false"),
    "kind": (HEAD + 'kind = "train"\n', "line 5", "did you mean 'training'?"),
    "training without grad": (HEAD + 'kind = "training"\ngrad = "no_grad"\n', "line 6", "no_grad"),
    "device": (HEAD + 'device = "gpu"\n', "line 5", "cuda:N"),
    "tracing": (HEAD + "tracing = false\n", "line 5", "tracing"),
    "env form": (HEAD + 'env = "A=1"\n', "line 5", "a table of strings"),
    "env number": (HEAD + "[target.env]\nA = 1\n", "line 6", 'A = "1"'),
    "env own": (HEAD + 'env = {HOME = "/x"}\n', "line 5", "warm sets this one"),
    "pass_env form": (HEAD + 'pass_env = "A"\n', "line 5", "a list of variables"),
    "pass_env name": (HEAD + 'pass_env = ["A-B"]\n', "line 5", "not the name of a variable"),
    "pass_env own": (HEAD + 'pass_env = ["CACHESVC_TOKEN"]\n', "line 5", "warm sets this one"),
    "env ours": (HEAD + 'env = {CACHESVC_URL = "x"}\n', "line 5", "warm sets this one"),
    "cwd": (HEAD + 'cwd = "nowhere"\n', "line 5", "no such folder"),
    "timeout": (HEAD + "timeout = 0\n", "line 5", "1 to"),
    "timeout text": (HEAD + 'timeout = "1h"\n', "line 5", "a number"),
    "runs": (HEAD + "runs = true\n", "line 5", "a whole number"),
    "tolerance form": (HEAD + "tolerance = 0.1\n", "line 5", "rtol"),
    "tolerance key": (HEAD + "tolerance = {rtol = 1.0, abs = 1}\n", "line 5", "atol"),
    "tolerance negative": (HEAD + "tolerance = {rtol = -1.0}\n", "line 5", "out of range"),
    "tolerance nan": (HEAD + "tolerance = {rtol = nan}\n", "line 5", "out of range"),
    "date in args": (HEAD + "args = {day = 2020-01-01}\n", "line 5", "JSON"),
    "nan in options": (HEAD + "options = {x = nan}\n", "line 5", "JSON"),
    "inputs call": (HEAD + 'inputs = "models"\n', "line 5", "module:function"),
    "inputs number": (HEAD + "inputs = 3\n", "line 5", "input sets"),
    "input set call": (HEAD + '[target.inputs]\nshort = "models"\n', "line 6", "module:function"),
    "input set empty": (HEAD + "[target.inputs.short]\n", "line 5", "no arguments"),
    "input set name": (HEAD + '[target.inputs."a b"]\nx = 1\n', "line 5", "not a name"),
    "tensor as set": (HEAD + "[target.inputs]\nx = {shape = [1]}\n", "line 6", "one level deeper"),
    "no shape": (HEAD + '[target.inputs.a]\nx = {dtype = "int64"}\n', "line 6", "shape: missing"),
    "shape": (HEAD + '[target.inputs.a]\nx = {shape = "1x2"}\n', "line 6", "whole numbers"),
    "negative shape": (HEAD + "[target.inputs.a]\nx = {shape = [-1]}\n", "line 6", "whole numbers"),
    "huge shape": (HEAD + "[target.inputs.a]\nx = {shape = [1000000, 1000000]}\n", "line 6", "at most"),
    "tensor key": (HEAD + "[target.inputs.a]\nx = {shape = [1], max = 3}\n", "line 6", "unknown key"),
    "tensor dtype": (HEAD + '[target.inputs.a]\nx = {shape = [1], dtype = "long"}\n', "line 6", "'int64'"),
    "tensor high": (
        HEAD + '[target.inputs.a]\nx = {shape = [1], dtype = "int64"}\n',
        "line 6",
        "high: missing",
    ),
    "tensor bounds": (
        HEAD + "[target.inputs.a]\nx = {shape = [1], low = 2, high = 1}\n",
        "line 6",
        "above low",
    ),
    "tensor fill": (HEAD + '[target.inputs.a]\nx = {shape = [1], fill = "rand"}\n', "line 6", "'random'"),
    "tensor fill type": (HEAD + "[target.inputs.a]\nx = {shape = [1], fill = 0}\n", "line 6", "zeros"),
    "tensor dynamic": (
        HEAD + "[target.inputs.a]\nx = {shape = [1], dynamic = [1]}\n",
        "line 6",
        "1 dimensions",
    ),
    "positions": (HEAD + '[target.inputs.a]\n"*" = 3\n', "line 6", "positional"),
    "date as argument": (HEAD + "[target.inputs.a]\nx = 2020-01-01\n", "line 6", "not an argument"),
    "second target": (
        HEAD + '[[target]]\nid = "y"\nfactory = "m:g"\nseed = -1\n',
        "line 8: target 'y': seed",
        "0 to",
    ),
    "in defaults": (
        'name = "a/b"\n[defaults]\nruns = 0\n[[target]]\nid = "x"\n',
        "line 3: defaults: runs",
        "1 to",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_mistake_is_one_line_with_file_line_key_and_fix(folder, case):
    text, *parts = MALFORMED[case]
    with pytest.raises(SpecError) as error:
        parse_spec(text, folder / "warm.toml")
    message = str(error.value)
    assert "\n" not in message
    assert "warm.toml" in message
    for part in parts:
        # "line 5" must not be satisfied by "line 50".
        assert re.search(re.escape(part) + (r"\b" if part[-1:].isdigit() else ""), message), message


def test_unreadable_files_are_reported(folder):
    for path, part in ((folder / "no.toml", "No such file"), (folder, "directory")):
        with pytest.raises(SpecError, match=part):
            load_spec(path)
    (folder / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(SpecError, match="UTF-8"):
        load_spec(folder / "latin.toml")
    (folder / "large.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(SpecError, match="at most"):
        load_spec(folder / "large.toml")


def test_every_form_of_key_has_a_line_number():
    text = (
        '# comment\na = 1\n[t]\nb = """\nc = 3\n""" # [x]\n"d e".f = [\n 1, # ]\n 2]\n'
        "[[u]]\ng = {h = 1}\n[[u]]\n\ng = '''\n[no]'''\n[u.v]\nw = \"#\"\n"
    )
    lines = lines_of(text)
    assert lines[("a",)] == 2
    assert lines[("t", "b")] == 4
    assert ("t", "c") not in lines
    assert lines[("t", "d e", "f")] == 7
    assert lines[("u", 0, "g", "h")] == 11
    assert lines[("u", 1, "g")] == 14
    assert lines[("u", 1, "v", "w")] == 17
    assert line_of(lines, ("u", 1, "v", "other")) == 16
    assert line_of(lines, ("missing",)) is None


LEVELS = 'name = "a/b"\n[[target]]\nid = "x"\nscript = "train.py"\nmarch = {}\nenv = {{{}}}\n'


def test_levels_are_one_or_a_list(folder):
    for text, levels in {
        '"x86-64-v3"': ("x86-64-v3",),
        '["x86-64-v2", "x86-64-v4"]': ("x86-64-v2", "x86-64-v4"),
        '""': (),
    }.items():
        (target,) = parse_spec(LEVELS.format(text, ""), folder / "w.toml").targets
        assert target.march == levels


@pytest.mark.parametrize(
    ("text", "env", "why"),
    [
        ('"x86-64-v5"', "", "line 5: .*march: 'x86-64-v5' is not known.*did you mean 'x86-64-v"),
        ('["x86-64-v3", "znver4"]', "", "line 5: .*march: 'znver4' is not known"),
        ('["x86-64-v3", "x86-64-v3"]', "", "names one twice"),
        ("[]", "", "march: empty"),
        ("3", "", "march: 3 is not a list"),
        (
            '["x86-64-v4", "x86-64-v3"]',
            'ATEN_CPU_CAPABILITY = "avx512"',
            r"line 6: .*'avx512', and march = \"x86-64-v3\" needs 'avx2'",
        ),
    ],
)
def test_levels_that_cannot_be_are_one_line(folder, text, env, why):
    with pytest.raises(SpecError, match=why):
        parse_spec(LEVELS.format(text, env), folder / "w.toml")
