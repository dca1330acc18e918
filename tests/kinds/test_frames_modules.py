"""Test what a start with recorded frames loads without compiling it, and what it runs later."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.kinds.frames.guards import live
from cachesvc_client.kinds.frames.modules import compiled_modules, loaded_from

TEXT = """\
def call(args):
    return [fail(x) for x in args]

def fail(x):
    raise ValueError(x)
"""


def load(path: Path) -> types.ModuleType:
    from torch._inductor.runtime import compile_tasks

    return compile_tasks._reload_python_module("key", str(path), set_sys_modules=False)


def test_a_module_is_loaded_from_the_builders_code_and_shows_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The builder wrote the same text to another file."""
    (tmp_path / "graph.py").write_text(TEXT)
    compiled = compiled_modules([TEXT])
    asked: list[object] = []

    def compile_and_note(*call: Any, before: Any = compile, **named: Any) -> Any:
        asked.append(call[:2])
        return before(*call, **named)

    with monkeypatch.context() as patched, loaded_from(compiled):
        patched.setattr("builtins.compile", compile_and_note)
        module = load(tmp_path / "graph.py")
    assert (TEXT, str(tmp_path / "graph.py")) not in asked
    with pytest.raises(ValueError, match="7") as raised:
        module.call([7])
    lines = [frame.line for frame in traceback.extract_tb(raised.value.__traceback__)][1:]
    assert lines[0] == "return [fail(x) for x in args]" and lines[-1] == "raise ValueError(x)"
    assert raised.traceback[-1].path == tmp_path / "graph.py"


@pytest.mark.parametrize("change", ["text", "python"])
def test_another_text_or_python_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    compiled = compiled_modules(["def call(args):\n    return 1\n"])
    text = "def call(args):\n    return 2\n" if change == "text" else "def call(args):\n    return 1\n"
    if change == "python":
        monkeypatch.setattr("importlib.util.MAGIC_NUMBER", b"1234")
        compiled = dict.fromkeys(compiled, b"of another Python")
    (tmp_path / "graph.py").write_text(text)
    with loaded_from(compiled):
        assert load(tmp_path / "graph.py").call([]) == (2 if change == "text" else 1)


def test_inductor_compiles_its_modules_itself_afterwards() -> None:
    from torch._inductor.runtime import compile_tasks

    with loaded_from({}):
        assert "compile" in vars(compile_tasks)
    assert "compile" not in vars(compile_tasks)


def test_a_torch_that_loads_modules_in_another_way_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.compile_tasks", None)
    monkeypatch.delattr("torch._inductor.runtime.compile_tasks", raising=False)
    with loaded_from({}):
        pass


def test_expressions_are_read_in_the_scope_that_python_would_take() -> None:
    from torch import _guards

    name = "text"
    with live._compiled_once():
        read = vars(_guards)["eval"]
        assert [read("name"), read("x + y", {"x": 1}, {"y": 2}), read("x", {"x": 3})] == [name, 3, 3]
        assert read(compile("x", "", "eval"), {"x": 4}) == 4
    assert "eval" not in vars(_guards)


def test_settings_are_at_hand_only_while_guards_are_made() -> None:
    """A setting that the program changes has its value within and after the block."""
    from torch._dynamo import config

    name = "skip_tensor_guards_with_matching_dict_tags"
    with config.patch({name: not getattr(config, name)}):
        changed = getattr(config, name)
        before = {*vars(config)}
        with live._settings_at_hand():
            assert vars(config)[name] is changed
        assert {*vars(config)} == before and getattr(config, name) is changed
    assert getattr(config, name) is not changed


def test_a_module_is_found_through_the_modules_that_it_lies_in() -> None:
    from torch import nn

    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    names, known = {"L": {"self": model}}, dict[str, Any]()
    inner = "L['self']._modules['1']._modules['0']"
    assert live._module(inner, names, known) is model[1][0]
    assert known["L['self']._modules['1']"] is model[1]
    assert live._module("L['self']._modules['0']", names, known) is model[0]
    with pytest.raises(live.Differs, match=r"_modules\['2'\] cannot be read: KeyError"):
        live._module("L['self']._modules['2']._modules['0']", names, known)
    with pytest.raises(live.Differs, match="cannot be read: AttributeError"):
        live._module("L['self'].no_such._modules['0']", names, known)


LATE = """
import json, sys
import torch
from cachesvc_client.kinds.frames import deferred
codecache = deferred.code_cache()
package = sys.modules["torch.export.pt2_archive"]
late = "torch.export.pt2_archive._package" not in sys.modules
answer = {"late": late, "same": codecache is sys.modules["torch._inductor.codecache"]}
answer["unasked"] = not hasattr(package, "__wrapped__") and type(package) is not type(sys)
import torch.export.pt2_archive._package_weights as weights
answer["weights"] = codecache.Weights is weights.Weights
HOW
answer["reader"] = reader.__name__
answer["plain"] = type(package).__name__ == "module" and package is torch.export.pt2_archive
answer["unknown"] = not hasattr(package, "no_such_name")
print(json.dumps(answer))
"""


@pytest.mark.parametrize(
    "how",
    [
        "from torch.export.pt2_archive import PT2ArchiveReader as reader",
        "import torch.export.pt2_archive\nreader = torch.export.pt2_archive.PT2ArchiveReader",
        "from torch.export.pt2_archive import *\nreader = PT2ArchiveReader",
        "from torch.export.pt2_archive._package import PT2ArchiveReader as reader; package.is_pt2_package",
    ],
)
def test_a_late_package_is_there_when_it_is_asked_for(how: str) -> None:
    program = LATE.replace("HOW", how)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer.pop("reader") == "PT2ArchiveReader"
    assert all(answer.values()), answer


def test_threads_get_the_names_of_a_late_package_when_all_are_there(tmp_path: Path) -> None:
    slow = tmp_path / "outer/slow"
    slow.mkdir(parents=True)
    (slow / "__init__.py").write_text("import time\ntime.sleep(0.5)\nruns = []\nfrom . import part\n")
    (slow / "part.py").write_text("from . import runs\nruns.append(1)\n")
    program = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from cachesvc_client.kinds.frames import late_package
late_package.put_late_package("outer.slow")
from outer import slow
assert type(slow) is not type(sys)
got = []
threads = [threading.Thread(target=lambda: got.append(slow.runs)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(got)
"""
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "[[1], [1], [1], [1]]", result.stderr
