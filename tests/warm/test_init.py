"""Test `cachesvc init`: real programs under observation, and a spec that warms what they compile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from cachesvc.warm.init import spec_text
from cachesvc.warm.init.project import runs_when_imported
from cachesvc.warm.spec.spec import load_spec
from tests.e2e.harness import WARMED

from .conftest import command

MODELS = """\
import torch

class Net(torch.nn.Module):
    def __init__(self, width: int = 8, act=None):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.act = act or torch.nn.functional.relu

    def forward(self, x, scale=1.0, ids=None):
        y = self.act(self.linear(x)) * scale
        return y if ids is None else y[ids]

def build(width: int):
    return Net(width).eval()

def step(x):
    return x + 1
"""
EAGER = 'torch.compiler.set_stance("force_eager")\n'
"""Compiles nothing, so that a test of what is observed is quick."""


@pytest.fixture
def project(tmp_path: Path, plain_environment):
    """Return a function that writes a program beside the models, and runs `init` on it."""
    (tmp_path / "models.py").write_text(MODELS)

    def run(
        program: str, *options: str, file: str = "serve.py"
    ) -> tuple[subprocess.CompletedProcess[str], str]:
        (tmp_path / file).write_text(program)
        words = command("init", "--name", "team/net", *options, file)
        done = subprocess.run(
            words, env=plain_environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        written = tmp_path / "warm.toml"
        return done, written.read_text() if written.exists() else ""

    return run


HEAD = "import torch\nfrom models import *\n"


def test_a_model_is_written_with_its_factory_options_and_inputs_as_seen(project, tmp_path):
    done, text = project(
        HEAD + EAGER + "model = build(16).to(torch.bfloat16)\n"
        "model = torch.compile(model, mode='max-autotune-no-cudagraphs', dynamic=True)\n"
        "x = torch.ones(2, 16, dtype=torch.bfloat16)\n"
        "with torch.inference_mode():\n"
        "    model(x)\n"
        "    model(x)\n"
        "    model(x, scale=2.0, ids=torch.tensor([1, 0]))\n"
    )
    assert done.returncode == 0, done.stderr
    (target,) = tomllib.loads(text)["target"]
    assert target == {
        "id": "net",
        "factory": "models:build",
        "args": {"width": 16},
        "dtypes": ["bfloat16"],
        "modes": ["max-autotune-no-cudagraphs"],
        "dynamic": True,
        "device": "cpu",
        "grad": "inference_mode",
        "inputs": {
            "call-1": {"*": [{"shape": [2, 16], "dtype": "bfloat16"}]},
            "call-2": {
                "*": [{"shape": [2, 16], "dtype": "bfloat16"}],
                "scale": 2.0,
                "ids": {"shape": [2], "dtype": "int64", "high": 2},
            },
        },
    }
    assert load_spec(tmp_path / "warm.toml").targets[0].grad == "inference_mode"
    assert "1 target, 2 input sets" in done.stdout and "next: cachesvc warm" in done.stdout


def test_each_way_to_compile_a_module_is_seen_and_training_is_told_from_inference(project):
    done, text = project(
        HEAD + EAGER + "model = Net()\n"
        "model.compile(fullgraph=True)\n"
        "model(torch.ones(3, 8)).sum().backward()\n"
        "model.eval()\n"
        "with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):\n"
        "    model(torch.ones(3, 8))\n"
    )
    targets = tomllib.loads(text)["target"]
    assert [target["factory"] for target in targets] == ["models:Net"] * 2, done.stderr
    assert [target["id"] for target in targets] == ["net-training", "net-no_grad-bfloat16"]
    assert targets[0]["kind"] == "training" and targets[0]["fullgraph"]
    assert (targets[1]["grad"], targets[1]["autocast"]) == ("no_grad", "bfloat16")


CONFIGURED = """\
import dataclasses, torch

@dataclasses.dataclass
class Inner:
    act: str = "relu"

@dataclasses.dataclass
class Config:
    width: int = 8
    inner: Inner = dataclasses.field(default_factory=Inner)

class Configured(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(config.width, config.width) for _ in range(3))
        self.act = getattr(torch.nn.functional, config.inner.act)

    def forward(self, x):
        for layer in self.layers[1:]:
            x = self.act(layer(x))
        return x
"""


def test_a_model_of_a_dataclass_is_made_of_it_and_marked_dimensions_are_kept(project, tmp_path):
    (tmp_path / "configured.py").write_text(CONFIGURED)
    done, text = project(
        "import torch\nfrom configured import *\n"
        + EAGER
        + "model = torch.compile(Configured(Config(16, Inner('gelu'))).eval())\n"
        "x = torch.ones(2, 16)\n"
        "torch._dynamo.mark_dynamic(x, 0)\n"
        "with torch.no_grad():\n"
        "    model(x)\n"
        "    model(torch.ones(5, 16))\n"
    )
    assert done.returncode == 0, done.stderr
    (target,) = tomllib.loads(text)["target"]
    inner = {"()": "configured:Inner", "act": "gelu"}
    assert (target["factory"], target["args"]) == (
        "configured:Configured",
        {"config": {"()": "configured:Config", "width": 16, "inner": inner}},
    )
    sets = [one["*"][0] for one in target["inputs"].values()]
    assert sets == [
        {"shape": [2, 16], "dtype": "float32", "dynamic": [0]},
        {"shape": [5, 16], "dtype": "float32"},
    ]


LIBRARY = """\
import torch

class Loaded(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, folder, *args, **kwargs):
        return cls._load(folder, *args, **kwargs)

    @classmethod
    def _load(cls, folder, **kwargs):
        return cls(kwargs.pop("sizes"), **kwargs)

    def __init__(self, sizes, act=None):
        super().__init__()
        self.linear = torch.nn.Linear(*sizes)
        self.act = {"relu": torch.relu, "gelu": torch.nn.functional.gelu}[act]

    def forward(self, x):
        return self.act(self.linear(x))
"""


def test_a_call_of_a_library_is_the_factory_as_the_program_has_it_written(project, tmp_path):
    library = tmp_path / "site-packages" / "library"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(LIBRARY)
    done, text = project(
        "import sys, argparse, torch\nsys.path.insert(0, 'site-packages')\nfrom library import Loaded\n"
        + EAGER
        + "options = argparse.Namespace(act='gelu', width=16)\n"
        "model = Loaded.from_pretrained('folder', sizes=[options.width, 4], act=options.act)\n"
        "torch.compile(model)(torch.ones(2, 16))\n"
    )
    # No builder has the library, so that no process proves it: what was tried is said.
    assert "does library:Loaded.from_pretrained build it?" in done.stderr, text


def test_a_module_whose_methods_are_called_is_warmed_with_the_whole_program(project):
    done, text = project(
        HEAD + EAGER + "compiled = torch.compile(Net(8))\ncompiled._orig_mod(torch.ones(2, 8))\n"
    )
    assert "Net (compiled at serve.py:4) has no target: no call of it was seen" in done.stdout, done.stderr
    assert [one["script"] for one in tomllib.loads(text)["target"]] == ["serve.py"]


def test_what_the_program_compiles_whole_is_compiled_under_observation_too(project, tmp_path):
    (tmp_path / "configured.py").write_text(CONFIGURED)
    done, text = project(
        "import torch\nfrom configured import *\n"
        "model = torch.compile(Configured(Config()), fullgraph=True, backend='eager')\n"
        "print('answer', tuple(model(torch.ones(2, 8)).shape))\n"
    )
    assert "answer (2, 8)" in done.stdout, done.stderr
    assert "its backend is 'eager'" in text


def test_what_has_no_target_is_said_in_one_line_with_a_stub_and_the_script_stands_in(project, tmp_path):
    done, text = project(
        HEAD + EAGER + "@torch.compile\n"
        "def twice(x):\n"
        "    return x * 2\n"
        "twice(torch.ones(4))\n"
        "net = torch.compile(Net(8, torch.nn.ReLU()))\n"
        "net(torch.ones(2, 8))\n"
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("not in the spec: ")]
    assert "twice (compiled at serve.py:4) has no target: it is a function; write a factory" in said[0]
    assert "Net has the argument act, a ReLU; write a factory" in said[1]
    assert "the target 'serve' runs the whole of serve.py" in said[2]
    assert '# factory = "MODULE:FUNCTION"' in text and '# id = "twice"' in text
    (target,) = tomllib.loads(text)["target"]
    assert target == {"id": "serve", "script": "serve.py"}
    assert load_spec(tmp_path / "warm.toml").targets[0].script


def test_a_model_of_a_program_that_cannot_be_imported_names_the_line(project):
    done, _ = project(
        HEAD + EAGER + "class Own(Net):\n    pass\nnet = torch.compile(Own())\nnet(torch.ones(2, 8))\n"
    )
    assert "Own is in serve.py, whose line 3 runs at its import; move it into a module" in done.stdout


def test_a_model_of_a_guarded_program_is_imported_from_it(project):
    done, text = project(
        HEAD + "class Own(Net):\n    pass\n\n"
        'if __name__ == "__main__":\n'
        "    " + EAGER + "    torch.compile(Own(8))(torch.ones(2, 8))\n",
        file="app.py",
    )
    assert tomllib.loads(text)["target"][0].get("factory") == "app:Own", done.stdout + done.stderr


def test_a_service_is_ended_and_its_calls_are_kept(project):
    done, text = project(
        HEAD + EAGER + "import time\nnet = torch.compile(build(8))\nnet(torch.ones(2, 8))\ntime.sleep(600)\n",
        "--seconds",
        "25",
    )
    assert tomllib.loads(text)["target"][0]["factory"] == "models:build", done.stderr


MISTAKES = {
    "nothing compiled": ("import torch\n", 4, "the program called nothing that torch.compile made"),
    "a failing program": ("raise SystemExit(3)\n", 4, "(it ended with status 3)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_program_without_compiles_writes_nothing(project, mistake):
    program, status, message = MISTAKES[mistake]
    done, text = project(program)
    assert (done.returncode, text) == (status, "")
    assert message in done.stderr


def test_a_spec_without_a_target_is_no_success(project):
    done, text = project(
        "import torch\nf = torch.compile(lambda x: x + 1, backend='eager')\n"
        "f(torch.ones(2))\nraise SystemExit(3)\n"
    )
    assert done.returncode == 4 and "# factory" in text
    assert "the spec has no target (write the factories that warm.toml names" in done.stderr


def test_init_asks_on_a_terminal_whether_to_warm(tmp_path, plain_environment):
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "serve.py").write_text(HEAD + EAGER + "torch.compile(build(8))(torch.ones(2, 8))\n")
    ours, theirs = os.openpty()
    with subprocess.Popen(
        command("init", "serve.py"),
        env=plain_environment,
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        said = b""
        while b"run cachesvc warm warm.toml now?" not in said:
            said += os.read(ours, 1000)
        os.write(ours, b"n\n")
        assert process.wait(60) == 0
    os.close(ours)


def test_a_program_that_is_not_there_is_not_started(tmp_path):
    for words, message in (
        (["absent.py"], "error: absent.py: no such file (give the program"),
        (["."], "error: .: is a folder (give the program"),
        (["serve.py", "--name", "team/net"], "error: --name stands after serve.py, which would get it (put"),
        (["serve.py", "8", "--out=w.toml"], "error: --out=w.toml stands after serve.py, which would get it"),
        (["--", "./absent", "--name", "x"], "error: ./absent: No such file"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "cachesvc", "init", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert done.stderr.startswith(message), done.stderr


def test_a_spec_is_overwritten_only_with_force(project, tmp_path):
    (tmp_path / "warm.toml").write_text("mine\n")
    done, text = project("raise SystemExit('it ran')\n")
    assert (done.returncode, text) == (2, "mine\n")
    assert "warm.toml is there already" in done.stderr and "it ran" not in done.stderr
    done, _ = project("raise SystemExit('it ran')\n", "--force")
    assert "it ran" in done.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"""Doc."""\nimport os\nX: int = 3\nclass A: ...\nif __name__ == "__main__":\n    run()\n', 0),
        ("import os\nmodel = build()\n", 2),
        ("import os\nos.fork()\n", 2),
        ("def f(: broken", 1),
    ],
)
def test_lines_that_run_at_an_import_are_found(tmp_path, text, line):
    (tmp_path / "program.py").write_text(text)
    assert runs_when_imported(tmp_path / "program.py") == line


@pytest.mark.parametrize("item", ['a"b\\\n\x7f é', [1, 2.5, True], {"a b": {"*": [{"shape": [1]}]}}, 1e300])
def test_values_are_written_as_toml_reads_them(item):
    assert tomllib.loads(f"x = {spec_text.value(item)}")["x"] == item


PROGRAMS = {
    "a factory": HEAD + "model = torch.compile(build(16))\n"
    "with torch.no_grad():\n    print('answer', tuple(model(torch.ones(2, 16)).shape))\n",
    "a class of the program": "import torch\n"
    "class Own(torch.nn.Module):\n    def forward(self, x):\n        return (x.sin() + 1).relu()\n\n"
    'if __name__ == "__main__":\n    model = Own().eval()\n    model.compile()\n    with torch.no_grad():\n'
    "        print('answer', tuple(model(torch.ones(2, 16)).shape))\n",
    "a function": "import torch\n@torch.compile\ndef twice(x):\n    return (x * 2).cos()\n"
    "print('answer', tuple(twice(torch.ones(2, 16)).shape))\n",
}


SHORT = "a factory"
"""The form that `make test` runs; `make test-all` runs all. Each takes more than a minute, and CI has 40."""
FORMS = [pytest.param(form, marks=[pytest.mark.long] * (form != SHORT)) for form in PROGRAMS]


@pytest.mark.compiles
@pytest.mark.parametrize("form", FORMS)
def test_what_init_writes_is_warmed_and_a_fresh_start_of_the_program_hits(registry, tmp_path, form):
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "serve.py").write_text(PROGRAMS[form])
    name = f"team/init-{form.replace(' ', '-')}"
    variables = {**registry, **WARMED, "OMP_NUM_THREADS": "1"}

    def run(words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words, env=variables | more, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    run(command("init", "--name", name, "serve.py"))
    assert tomllib.loads((tmp_path / "warm.toml").read_text())["defaults"]["env"]["OMP_NUM_THREADS"] == "1"
    run(command("warm", "warm.toml"))
    service = run(
        command("run", name, "--", sys.executable, "serve.py"),
        CACHESVC_LOG="info",
        CACHESVC_STORE=str(tmp_path / "store"),
    )
    assert "answer (2, 16)" in service.stdout
    # Under CI=true this torch has another setting than in the builder, so that a hit traces, and says so.
    assert re.search(r": hit(, but traced: .*error_on_custom_op_aliasing)?: nothing compiled", service.stderr)
