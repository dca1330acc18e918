"""Test that the code keeps the limits of the house, but for a list of places that only becomes shorter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import house


def test_nothing_new_breaks_a_limit_and_what_is_mended_leaves_the_list() -> None:
    now, noted = house.broken(), house.NOTED.read_text().splitlines()
    assert sorted(now - set(noted)) == [], "new; see python -m tools.house"
    assert sorted(set(noted) - now) == [], "mended: take the line off tests/house/broken.txt"
    assert noted == sorted(set(noted))


PLANTS = {
    "circle: cachesvc.one, cachesvc.other": {
        "cachesvc/one.py": "from . import other\n",
        "cachesvc/other.py": "def late():\n    from .one import name\n",
    },
    "server imports session of the client: cachesvc.one": {
        "cachesvc/one.py": "from cachesvc_client.session.run import name\n",
        "client/cachesvc_client/session/run.py": "",
    },
    "kind helion is named: cachesvc_client.other": {
        "client/cachesvc_client/kinds/helion/kind.py": "",
        "client/cachesvc_client/kinds/helion/__init__.py": "",
        "client/cachesvc_client/other.py": "NAME = 'helion'\n",
    },
    "above 400 lines: cachesvc.one": {"cachesvc/one.py": "x = 1\n" * 401},
    "above 20 public methods: cachesvc.one.Big": {
        "cachesvc/one.py": "class Big:\n" + "".join(f"    def f{n}(self): ...\n" for n in range(21))
    },
    "above 20 public methods: cachesvc.one.Heir": {
        "cachesvc/one.py": "from .other import Part\nclass Heir(Part):\n"
        + "".join(f"    def f{n}(self): ...\n" for n in range(11)),
        "cachesvc/other.py": "class Part:\n" + "".join(f"    def g{n}(self): ...\n" for n in range(10)),
    },
    "above 10 fields: cachesvc.one.Bag": {
        "cachesvc/one.py": "@dataclass\nclass Bag:\n" + "".join(f"    f{n}: int\n" for n in range(11))
    },
    "two callables by position: cachesvc.one.swapped": {
        "cachesvc/one.py": "def swapped(a: Callable[[], None], b: Callable[[], None]): ...\n"
    },
    "above 20 files: cachesvc.full": {f"cachesvc/full/f{n}.py": "" for n in range(21)},
}


@pytest.mark.parametrize("line", PLANTS)
def test_a_plant_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"cachesvc/__init__.py": "", "client/cachesvc_client/__init__.py": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name, text in PLANTS[line].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    packages = {"cachesvc": tmp_path / "cachesvc", "cachesvc_client": tmp_path / "client" / "cachesvc_client"}
    monkeypatch.setattr(house, "PACKAGES", packages)
    assert house.broken() == {line}


def test_what_is_for_type_checkers_alone_is_no_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cachesvc"
    folder.mkdir()
    (folder / "one.py").write_text("if TYPE_CHECKING:\n    from .other import name\n")
    (folder / "other.py").write_text("from . import one\n")
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(house, "PACKAGES", {"cachesvc": folder})
    assert house.broken() == set()


def test_the_list_of_kinds_may_name_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "client" / "cachesvc_client" / "kinds"
    (folder / "helion").mkdir(parents=True)
    for name, text in {
        "helion/kind.py": "",
        "helion/__init__.py": "",
        "__init__.py": "OURS = ('helion',)\n",
    }.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(house, "PACKAGES", {"cachesvc_client": folder.parent})
    assert house.broken() == set()


NAMES_A_KIND = {
    "x = roots['triton']": True,
    "x = [kinds.BY_NAME['triton']]": True,
    "x = file.kind == 'triton'": True,
    "x = record(kind='triton')": True,
    "MY_KINDS = frozenset({'triton'})": True,
    "x = fingerprint.get('triton')": False,
    "x = find_spec('triton')": False,
    "PACKAGES = ('torch', 'triton')": False,
}


@pytest.mark.parametrize("text", NAMES_A_KIND)
def test_a_name_of_a_package_counts_where_it_stands_for_a_kind(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "client" / "cachesvc_client"
    (folder / "kinds" / "triton").mkdir(parents=True)
    for name in ("kinds/__init__.py", "kinds/triton/__init__.py", "kinds/triton/kind.py"):
        (folder / name).write_text("")
    (folder / "other.py").write_text(text)
    monkeypatch.setattr(house, "PACKAGES", {"cachesvc_client": folder})
    found = {"kind triton is named: cachesvc_client.other"} if NAMES_A_KIND[text] else set()
    assert house.broken() == found


def test_what_a_single_room_may_import_is_its_own_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from cachesvc_client.session.run import name\n"
    for name in ("cachesvc/warm/worker/one.py", "cachesvc/warm/workers.py", "cachesvc/warm/claims.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    client = tmp_path / "client" / "cachesvc_client"
    (client / "session").mkdir(parents=True)
    for file in (client / "__init__.py", client / "session" / "run.py", tmp_path / "cachesvc/__init__.py"):
        file.write_text("")
    monkeypatch.setattr(house, "PACKAGES", {"cachesvc": tmp_path / "cachesvc", "cachesvc_client": client})
    line = "server imports session of the client: cachesvc.warm."
    assert house.broken() == {f"{line}workers", f"{line}claims"}


def test_no_room_has_an_addition_that_it_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    known = house.modules()
    imports = {name: set(house._imports(one, known)) for name, one in known.items()}
    now = set(house._server_imports(imports))
    additions = house.FOR_ROOMS
    for room, rooms in additions.items():
        for one in rooms:
            less = {**additions, room: tuple(other for other in rooms if other != one)}
            monkeypatch.setattr(house, "FOR_ROOMS", less)
            assert set(house._server_imports(imports)) - now, f"{room} does not need {one}"
