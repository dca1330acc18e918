"""Test what every kind of compiler cache must hold: the test file of a kind subclasses `KindConformance`.

pytest runs its methods, which need nothing of pytest but the argument ``tmp_path``, a new folder. Only tests
import this module, so it may import rooms that stand on the kinds.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest import mock

from ... import kinds
from ...bundle.pack import PackReader, SourceFile, write_pack
from ...hooks import counters
from ...node.capture import capture
from ...node.install import install
from ...wire.manifest.records import Manifest, Statement, Workload
from ...wire.names import Namespace, ShortName, Target
from ...wire.requests.reports import KindWork
from .. import KINDS
from ..folders import Folders
from ..kind import Kind, KindState, RestoredFacts
from ..rules import KindRules

PIECES = ("/", "/../", "/./", "//", "\0", "\n", "\\", " ", "é")
"""Changes that make a path lead elsewhere, or make it one that no compiler writes."""

NOT_LOADABLE = struct.pack(
    "<4sB27xQ14xHH6x IIQQQQQQ", b"\x7fELF", 2, 64, 56, 1, 1, 4, 0, 0, 0, 120, 120, 4096
)
"""A whole file of one segment, which is no library."""


class Example(NamedTuple):
    """Describes a file as a real compiler leaves it.

    ``content``: the bytes of the file, where ``{root}`` stands for the absolute folder. ``write`` and
    ``last``: what the file's rule must say."""

    path: str
    content: bytes
    write: str = "immutable"
    last: bool = False


class KindConformance(ABC):
    """Proves for one kind what the rest of the client relies on."""

    kind: ClassVar[Kind]
    examples: ClassVar[tuple[Example, ...]]
    others: ClassVar[tuple[str, ...]]
    """Paths that no rule may match: the compiler's own locks and sources, and those of attackers."""

    @abstractmethod
    def use(self, state: KindState, root: Path) -> set[str]:
        """Make the state record a use of files in ``root``, which holds the examples. Return their paths."""

    @property
    def rules(self) -> Mapping[str, KindRules]:
        """Return the rules of the kind alone."""
        return {self.kind.name: self.kind.rules}

    @property
    def every_kind(self) -> tuple[Kind, ...]:
        """Return the kinds of a process that has this one too."""
        return KINDS if self.kind.name in kinds.BY_NAME else (*KINDS, self.kind)

    def allowed(self, state: KindState) -> Collection[Path]:
        """Return the folders and files from which a compiler may load the files that `KindState.accept`
        got."""
        return ()

    # Names ------------------------------------------------------------------------------------

    def test_names_and_variables_are_valid_and_unique(self) -> None:
        kind = self.kind
        assert kind.rules.name == kind.name
        assert re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", kind.name)
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", kind.folder.variable)
        for other in KINDS:
            assert other.name == kind.name or not {other.name, other.folder.variable} & {
                kind.name,
                kind.folder.variable,
            }
        assert not Path(kind.folder.place).is_absolute() and ".." not in Path(kind.folder.place).parts

    # Rules ------------------------------------------------------------------------------------

    def test_files_of_the_compiler_are_known(self) -> None:
        assert self.examples
        for example in self.examples:
            rule = self.kind.rules.rule(example.path)
            assert rule is not None, example.path
            assert (rule.write, rule.last) == (example.write, example.last), example.path
            assert (rule.merge is not None) == (rule.write == "merge")
            assert (rule.portable is None) == (rule.local is None)
        patterns = {id(self.kind.rules.rule(example.path)) for example in self.examples}
        assert patterns == set(map(id, self.kind.rules.rules)), "each rule has an example"

    def test_no_rule_knows_another_path(self) -> None:
        assert self.others
        for path in self.others:
            assert self.kind.rules.rule(path) is None, path
        for path in (example.path for example in self.examples):
            for place in range(len(path) + 1):
                for piece in PIECES:
                    assert self.kind.rules.rule(path[:place] + piece + path[place:]) is None
            assert self.kind.rules.rule("../" + path) is None and self.kind.rules.rule("/" + path) is None

    def test_a_file_survives_two_moves_unchanged(self, tmp_path: Path) -> None:
        here, there = tmp_path / "here", tmp_path / "there" / "deeper"
        first = self._capture(self._write(here))
        assert [file.path for file in first] == sorted(example.path for example in self.examples)
        assert not any(str(here).encode() in _data(file) for file in first), "no path of the builder travels"
        with ExitStack() as stack:
            reader = stack.enter_context(packed(first, tmp_path))
            install(reader, self.rules, {self.kind.name: there})
            digests = [(file.path, file.digest) for file in reader.manifest.files]
        for example in self.examples:
            content = (there / example.path).read_bytes()
            assert content == self._content(example, there), example.path
        second = self._capture(there)
        assert second == first
        with packed(second, tmp_path) as reader:
            assert [(file.path, file.digest) for file in reader.manifest.files] == digests

    def test_a_merge_keeps_the_local_entries(self) -> None:
        merged = [example for example in self.examples if example.write == "merge"]
        for example in merged:
            rule = self.kind.rules.rule(example.path)
            assert rule is not None and rule.merge is not None
            mine = json.loads(example.content)
            theirs = {**dict.fromkeys(mine, "theirs"), "new": 1}
            assert json.loads(rule.merge(example.content, json.dumps(theirs).encode())) == {**mine, "new": 1}
            for damaged in (b"", b"not json", b"[1]", b"\xff"):
                assert json.loads(rule.merge(example.content, damaged)) == mine
            assert rule.merge(b"half a fi", b"{}") == b"half a fi"

    def test_files_that_point_to_other_files_come_last(self, tmp_path: Path) -> None:
        last = {example.path for example in self.examples if example.last}
        rest = {example.path for example in self.examples} - last
        root, paths = tmp_path / "there", []

        def look(_step: str) -> None:
            present = self.kind.rules.files_in(root)
            paths.append(present)
            assert rest <= present or not present & last

        with packed(self._capture(self._write(tmp_path / "here")), tmp_path) as reader:
            install(reader, self.rules, {self.kind.name: root}, threads=1, step=look)
        assert len(paths) >= len(self.examples)

    # State ------------------------------------------------------------------------------------

    def test_a_fresh_state_has_used_nothing(self, tmp_path: Path) -> None:
        state, root = self.kind.start(), tmp_path / "root"
        state.set_environment({})
        state.use_folder(root)
        state.use_folder(root)
        state.forget({"unknown/path"}, {"UNKNOWN"})
        for default_folder in (False, True):
            assert state.used_files(root, left=default_folder) == set()
        keys, activity = state.keys, state.activity()
        assert keys.used() == state.used_paths() == keys.since(keys.records()) == set()
        assert keys.records() == 0 and activity.seconds == 0.0
        assert not state.has_host_code() and not activity.opened
        assert activity == state.activity()
        assert state.switched_off() == ""
        assert list(state.explain(RestoredFacts({}, [{}]))) == []
        state.leave_folder()
        assert state.used_files(root) == set()

    def test_used_files_are_listed_until_they_are_forgotten(self, tmp_path: Path) -> None:
        root, state = tmp_path / "root", self.kind.start()
        self._write(root)
        used = self.use(state, root)
        assert used and used <= state.used_files(root), "used files are captured"
        assert used <= self.kind.rules.files_in(root)
        keys = {part for path in used for part in path.split("/")[:-1]}
        state.forget(used, keys)
        for path in used:  # as `withdraw` does
            (root / path).unlink()
        assert not used & state.used_files(root)
        assert not used & state.used_paths() and not keys & state.keys.used()

    def test_accept_is_only_for_files_below_the_folder(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        hostile = [*self.others, *("../" + example.path for example in self.examples)]
        hostile += [str(tmp_path / "elsewhere" / example.path) for example in self.examples]
        self._write(tmp_path / "elsewhere")
        self._write(root)
        state = self.kind.start()
        state.set_environment({})
        state.use_folder(root)
        allowed = set(self.allowed(state))
        state.accept(root, hostile)
        assert set(self.allowed(state)) == allowed
        assert not set(hostile) & state.used_files(root)
        state.accept(root, [example.path for example in self.examples])
        assert all(path.is_relative_to(root) for path in self.allowed(state))

    # Folder -----------------------------------------------------------------------------------

    @contextmanager
    def _variables(self, **named: object) -> Iterator[None]:
        """Name these folders by variables, and those of no other kind."""
        with mock.patch.dict(os.environ):
            for name in (*kinds.VARIABLES, self.kind.folder.variable):
                os.environ.pop(name, None)
            os.environ.update({name: str(folder) for name, folder in named.items()})
            yield

    def _settle_folders(self, place: Path) -> Folders:
        folders = Folders(self.every_kind)
        folders.settle_early(lambda name: place / "early" / name)
        folders.settle(lambda: _private(place))
        return folders

    def test_a_folder_that_the_user_set_stays(self, tmp_path: Path) -> None:
        with self._variables(**{self.kind.folder.variable: tmp_path / "mine"}):
            folders = self._settle_folders(tmp_path)
            assert folders.roots()[self.kind.name] == tmp_path / "mine"
            folders.leave_early()
            assert os.environ[self.kind.folder.variable] == str(tmp_path / "mine")

    def test_the_default_folder_lies_where_the_kind_says(self, tmp_path: Path) -> None:
        private = _private(tmp_path)
        place = {
            "private": private / self.kind.folder.place,
            "inside": private / KINDS[0].folder.place / self.kind.folder.place,
            "process": tmp_path / "early" / self.kind.name,
        }[self.kind.folder.home]
        with self._variables():
            assert self._settle_folders(tmp_path).roots()[self.kind.name] == place
            assert os.environ.get(self.kind.folder.variable) == (
                str(place) if self.kind.folder.sets_variable else None
            )

    def test_a_private_folder_inherited_from_the_parent_process_is_dropped(self, tmp_path: Path) -> None:
        with self._variables():
            parents = self._settle_folders(tmp_path).roots()[self.kind.name]
        if self.kind.folder.home == "process":
            parents = _private(tmp_path)
        with self._variables(**{self.kind.folder.variable: parents}):
            folders = Folders(self.every_kind)
            assert self.kind.folder.variable not in os.environ and folders.roots() == {}

    # Hooks and counts -------------------------------------------------------------------------

    def test_hooks_say_their_purpose(self) -> None:
        for row in self.kind.hooks:
            assert row.purpose and (row.if_missing or not row.path), row
        names = [(row.module, row.path, row.since) for row in self.kind.hooks]
        assert len(set(names)) == len(names)

    def test_no_hook_breaks_its_compiler(self) -> None:
        """The program is a process of its own that names the kind, so an outside kind must be installed."""
        result = subprocess.run(
            [sys.executable, "-m", "cachesvc_client.kinds.testing", self.kind.name],
            env={**os.environ, "CACHESVC_KINDS": self.kind.name},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert result.returncode == 0, result.stderr[-3000:]
        assert "goes on without it" not in result.stderr, result.stderr[-3000:]
        report: Mapping[str, Any] = json.loads(result.stdout.splitlines()[-1])
        assert report["imported"] == [], "hooks wait for the application's imports"
        assert set(report["waiting"]) <= {row.module for row in self.kind.hooks}, "each hook has its row"
        assert report["left"] == []
        for how, change in report["changes"].items():
            assert change["wrong"] == [] and change["ours"] == [], how
            assert bool(change["hooked"]) == bool(how != "missing" and self.kind.hooks), how

    def test_work_is_counted_in_the_form_of_a_report(self) -> None:
        assert self.kind.cost(counters.Observation(), 0.0) in (None, KindWork())

    # Helpers ----------------------------------------------------------------------------------

    def _content(self, example: Example, root: Path) -> bytes:
        return example.content.replace(b"{root}", str(root).encode())

    def _write(self, root: Path) -> Path:
        for example in self.examples:
            (root / example.path).parent.mkdir(parents=True, exist_ok=True)
            (root / example.path).write_bytes(self._content(example, root))
        return root

    def _capture(self, root: Path) -> list[SourceFile]:
        name = self.kind.name
        return capture({name: self.kind.rules.files_in(root)}, self.rules, {name: root})


def _private(place: Path) -> Path:
    return place / "v1" / "folders" / ("0a" * 32)


def _data(file: SourceFile) -> bytes:
    assert isinstance(file.data, bytes)
    return file.data


def packed(files: list[SourceFile], folder: Path) -> PackReader:
    """Return the reader of a pack of these files, which is written into ``folder``."""
    path = folder / "pack"
    with open(path, "wb") as out:
        contents = write_pack(files, out)
    statement = Statement(Namespace("team"), ShortName("k"), Target("k"), 1_700_000_000_000)
    manifest = Manifest(statement, contents.pack, contents.frames, contents.files, {"torch": "2"}, Workload())
    return PackReader(path, manifest, 0)
