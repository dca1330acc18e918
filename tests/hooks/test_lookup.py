"""Test that hooked names are looked up in sources, without importing or running the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachesvc_client.hooks.lookup import look_up
from cachesvc_client.hooks.table import Hook
from cachesvc_client.process.every_hook import every_hook

SOURCE = """
raise SystemExit("imported")
import sys
class Base:
    def inherited(self): ...
class Cache(Base):
    listener: object = None
    def load(self): ...
    class Inner:
        value = 1
class Empty: ...
settings = Cache()
plain: int = 3
declared: str
if sys.version_info > (3, 0):
    def later(): ...
else:
    def never(): ...
try:
    from os import path as there
except ImportError:
    fallback = None
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "module.py").write_text(SOURCE)
    (folder / "deep" / "__init__.py").write_text("def at_the_top(): ...")
    (folder / "broken.py").write_text("def (")
    return folder


@pytest.mark.parametrize(
    ("module", "path", "presence"),
    [
        ("made.deep.module", "later", "there"),
        ("made.deep.module", "never", "there"),
        ("made.deep.module", "there", "missing"),
        ("made.deep.module", "fallback", "there"),
        ("made.deep.module", "plain", "there"),
        ("made.deep.module", "declared", "there"),
        ("made.deep.module", "Cache.load", "there"),
        ("made.deep.module", "Cache.inherited", "missing"),
        ("made.deep.module", "Cache.Inner.value", "there"),
        ("made.deep.module", "settings.listener", "there"),
        ("made.deep.module", "settings.load", "there"),
        ("made.deep.module", "settings.other", "missing"),
        ("made.deep.module", "Cache.other", "missing"),
        ("made.deep.module", "Empty.load", "missing"),
        ("made.deep.module", "load", "missing"),
        ("made.deep.module", "path", "missing"),
        ("made.deep.module", "", "there"),
        ("made.deep", "at_the_top", "there"),
        ("made.broken", "anything", "missing"),
        ("made.other", "anything", "no such module"),
        ("absent.module", "anything", "not installed"),
    ],
)
def test_a_name_is_looked_up_without_import(package: Path, module: str, path: str, presence: str) -> None:
    hook = Hook(module, path, "looks", "nothing is seen", role="explain")
    (state,) = look_up(
        [hook],
        folder=lambda name: package if name == "made" else None,
        release=lambda name: "1.0" if name == "made" else None,
    )
    assert state == (hook, presence)


@pytest.mark.parametrize(
    ("release", "presence"),
    [("2.8", "not in this release"), ("2.9", "there"), ("2.10", "there"), ("2.13", "not in this release")],
)
def test_a_release_without_the_name_loses_nothing(package: Path, release: str, presence: str) -> None:
    hook = Hook(
        "made.deep.module", "later", "looks", "nothing is seen", since="2.9", until="2.13", role="explain"
    )
    (state,) = look_up([hook], folder=lambda _: package, release=lambda _: release)
    assert state.presence == presence


def test_every_row_says_its_purpose_and_the_loss_without_it() -> None:
    rows = list(every_hook())
    assert len({(row.module, row.path, row.purpose) for row in rows}) == len(rows)
    for row in rows:
        assert row.purpose and (row.if_missing or not row.path), row
