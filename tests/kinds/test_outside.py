"""Test kinds of other distributions: which load, what is refused in one line, and what their errors do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client import kinds
from cachesvc_client.kinds.rules import FileRule, KindRules
from cachesvc_client.kinds.testing import packed
from cachesvc_client.node.capture import capture
from cachesvc_client.node.install import install
from cachesvc_client.wire.errors import Corrupt

REPOSITORY = Path(__file__).parents[2]
KIND = """
import sys
from cachesvc_client.kinds.kind import Kind, KindFolder, KindState
from cachesvc_client.kinds.rules import FileRule, KindRules

class State(KindState):
    {state}

RULES = KindRules({name!r}, (FileRule(r"[0-9a-f]{{8}}\\.bin"),))
KIND = Kind(RULES, State, KindFolder({variable!r}, home="inside", place={place!r}))
"""
ASK = """
import json, sys
from cachesvc_client import kinds
late = {"outside_one", "outside_two", "importlib.metadata"}
print(json.dumps({"kinds": [kind.name for kind in kinds.KINDS], "refused": kinds.REFUSED,
                  "imported": sorted(late & set(sys.modules))}))
"""


class Site:
    """A folder of installed distributions."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def add(self, package: str, point: str, **facts: str) -> None:
        """Install a distribution with one kind, whose entry point has a name."""
        facts = {
            "name": point,
            "variable": f"{package.upper()}_DIR",
            "place": point,
            "state": "pass",
            **facts,
        }
        (self.place / f"{package}.py").write_text(facts.get("text") or KIND.format(**facts))
        info = self.place / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[cachesvc.kinds]\n{point} = {package}:KIND\n")

    def ask(self, asked: str, program: str = ASK) -> dict[str, Any]:
        """Return what a process says that names these kinds."""
        path = os.pathsep.join(map(str, (self.place, REPOSITORY / "client")))
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path, "CACHESVC_KINDS": asked},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


OURS = list(kinds.OURS)


def test_an_installed_kind_is_not_imported_unless_it_is_named(site: Site) -> None:
    site.add("outside_one", "one")
    site.add("outside_two", "two")
    assert site.ask("") == {"kinds": OURS, "refused": [], "imported": [], "stderr": ""}
    named = site.ask(" one ,")
    assert named["kinds"] == [*OURS, "one"] and named["refused"] == []
    assert named["imported"] == ["importlib.metadata", "outside_one"]


def test_a_kind_of_ours_may_be_named_too(site: Site) -> None:
    site.add("outside_one", "one")
    assert site.ask("one,helion")["kinds"] == [*OURS, "one"]


def test_a_name_that_no_distribution_has_is_one_line(site: Site) -> None:
    site.add("outside_one", "one")
    answer = site.ask("flash-infer,one")
    assert answer["kinds"] == [*OURS, "one"]
    assert answer["refused"] == [
        "CACHESVC_KINDS names 'flash-infer', and no installed distribution has a kind of that name"
    ]


REFUSED = {
    "may not replace the kind of that name: it is left out": ("triton", {}),
    "the name of its rules must be 'one', in lower case": ("one", {"name": "two"}),
    "the kind triton has its folder there": ("one", {"place": "triton"}),
    "the kind inductor has its folder there": ("one", {"variable": "TORCHINDUCTOR_CACHE_DIR"}),
    "its home must be 'process', or 'inside' with a place of one part": ("one", {"place": "../up"}),
    "cannot be imported: ValueError: no": ("one", {"text": "raise ValueError('no')"}),
    "its object is no Kind": ("one", {"text": "KIND = object()"}),
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_kind_that_may_not_be_used_is_one_line(site: Site, line: str) -> None:
    point, facts = REFUSED[line]
    site.add("outside_one", point, **facts)
    answer = site.ask(point)
    assert answer["kinds"] == OURS and len(answer["refused"]) == 1
    assert line in answer["refused"][0] and "outside_one 1.0" in answer["refused"][0]


def test_a_name_that_two_distributions_have_gives_none(site: Site) -> None:
    site.add("outside_one", "one")
    site.add("outside_two", "one", variable="OTHER_DIR")
    answer = site.ask("one")
    assert answer["kinds"] == OURS and "none is used" in answer["refused"][0]


BROKEN = """
import json, logging
from pathlib import Path
from cachesvc_client import kinds
from cachesvc_client.hooks import imports
from cachesvc_client.kinds.kind import ProcessCallbacks
logging.basicConfig(format="%(message)s")
state = kinds.BY_NAME["one"].start()
state.install_hooks(ProcessCallbacks(lambda: None, lambda _: None))
state.use_folder(Path("/nowhere"))
state.accept(Path("/nowhere"), ["00000000.bin"])
place = Path("/nowhere")
answer = [*state.used_files(place), *state.made_files(place), *state.explain(None)]
answer += [*state.keys.used(), *state.recording.refused()]
print(json.dumps({"answer": answer}))
"""


@pytest.mark.parametrize(
    "method",
    [
        "def __init__(self): raise OSError('no')",
        "def install_hooks(self, callbacks): raise OSError('no')",
        "def used_files(self, root, *, left=False): raise OSError('no')",
        "def made_files(self, root): raise OSError('no')",
        "def explain(self, restored): yield 1 / 0",
    ],
)
def test_a_state_that_raises_is_one_line_and_has_used_nothing(site: Site, method: str) -> None:
    site.add("outside_one", "one", state=method)
    answer = site.ask("one", BROKEN)
    assert answer["answer"] == []
    assert answer["stderr"].count("the kind one failed") == 1, answer["stderr"]
    assert "publishes nothing of it" in answer["stderr"]


def fails(*_: object) -> bytes:
    raise KeyError("of somebody else's")


def test_a_file_without_a_portable_form_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x")
    (tmp_path / "two").write_bytes(b"x")
    rules = {"kind": KindRules("kind", (FileRule("one", portable=fails, local=fails), FileRule("two")))}
    files = capture({"kind": ["one", "two"]}, rules, {"kind": tmp_path})
    assert [file.path for file in files] == ["two"]


def test_a_file_that_gets_no_local_form_is_damage_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x")
    plain = {"kind": KindRules("kind", (FileRule("one"),))}
    files = capture({"kind": ["one"]}, plain, {"kind": tmp_path})
    rules = {"kind": KindRules("kind", (FileRule("one", portable=fails, local=fails),))}
    with packed(files, tmp_path) as reader, pytest.raises(Corrupt, match="kind/one"):
        install(reader, rules, {"kind": tmp_path / "there"})
