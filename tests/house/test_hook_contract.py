"""Test that changes of private names are told: changes are planted in a wheel with torch's own sources."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from pathlib import Path

import pytest

from tools.hook_contract import READS, TABLE, Row, Table, check, compare, main, rows
from tools.private_names import Sources

SITE = Path(importlib.util.find_spec("torch").origin).parents[1]
RELOAD = "torch/_inductor/runtime/triton_heuristics.py"
CODECACHE = "torch/_inductor/codecache.py"
CALLBACK = "torch/_dynamo/callback.py"
ARTIFACTS = "torch/compiler/_cache.py"


def write_wheel(folder: Path, changes: dict[str, tuple[str, str]], version: str = "9.9.0") -> Path:
    """Write a wheel with the modules that the rows name; ``changes``: module -> pattern and replacement."""
    path = folder / f"torch-{version}-py3-none-any.whl"
    modules = {row.module.replace(".", "/") for row in rows() if row.package == "torch"}
    files = [name for base in modules for name in (f"{base}.py", f"{base}/__init__.py")]
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("torch/version.py", f"__version__ = '{version}'\n")
        for name in files:
            if (SITE / name).is_file():
                text = (SITE / name).read_text()
                if name in changes:
                    text, count = re.subn(*changes[name], text, count=1)
                    assert count == 1, f"{changes[name][0]} is not in {name}"
                wheel.writestr(name, text)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table({"torch": [], "triton": []}, {})
    assert table.record(Sources(write_wheel(tmp_path, {}, "9.8.0"))) == ["torch 9.8.0"]
    return table


PLANTED = {
    "a name that is gone": (
        {ARTIFACTS: (r"def record_artifact\(", "def record_the_artifact(")},
        ("gone: torch.compiler._cache.CacheArtifactManager.record_artifact",
         "FIX: torch.compiler._cache.CacheArtifactManager.record_artifact is missing"),
    ),
    "one more parameter, which a wrapper must know": (
        {CODECACHE: (r"(def load_async\(\s*cls,\s*main_code: str,)", r"\1 linker: str = 'ld',")},
        ("new parameter linker: torch._inductor.codecache.CppCodeCache.load_async",
         "FIX: torch._inductor.codecache.CppCodeCache.load_async has a parameter linker"),
    ),
    "a parameter that a wrapper reads has another name": (
        {RELOAD: (r"reload_kernel_from_src: ", "reload: ")},
        ("new parameter reload: torch._inductor.runtime.triton_heuristics.CachingAutotuner.recheck",
         "recheck_autotune_cache has no parameter reload_kernel_from_src, which the wrapper reads"),
    ),
    "a method that moved to a base class, where a hook does not find it": (
        {ARTIFACTS: (
            r"class CacheArtifactManager:\n((?s:.*?))(    @classmethod\n    def record_artifact)",
            r"class CacheArtifactManager(_Base):\n\1    pass\n\n\nclass _Base:\n\2")},
        ("moved to a base class: torch.compiler._cache.CacheArtifactManager.record_artifact",
         "is inherited from torch.compiler._cache._Base"),
    ),
    "another default": (
        {CODECACHE: (r"(def load_async\((?s:.*?)submit_fn: Any = )None", r"\1print")},
        ("another default, order or kind: torch._inductor.codecache.CppCodeCache.load_async",
         "The wrapper reads nothing that changed."),
    ),
    "a callback that is called with one argument more": (
        {CALLBACK: (r"(def run_start_callbacks(?s:.*?)callback\(args)\)", r"\1, self)")},
        ("CompilationCallbackHandler.run_start_callbacks calls callback", "now:    (_, _)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_change_is_told(planted: str, table: Table, tmp_path: Path) -> None:
    changes, expected = PLANTED[planted]
    wheel = Sources(write_wheel(tmp_path, changes))
    said = "\n".join(compare(wheel, table))
    assert "9.9.0 against 9.8.0: 1 of" in said
    for text in expected:
        assert text in said
    assert '"forms": {"9.9.0": "' in said, "the row is drafted"
    lines = check(
        wheel,
        Table(
            {"torch": ["9.9.1"], "triton": []},
            {name: {"9.9.1": form["9.8.0"]} for name, form in table._forms.items()},
        ),
    )
    [line, *_] = [line for line in lines if not line.endswith(" is missing")]  # names of later releases
    assert line.startswith("torch 9.9.0: ") and "the table has" in line


def test_an_unchanged_release_changes_nothing(table: Table, tmp_path: Path) -> None:
    [line] = compare(Sources(write_wheel(tmp_path, {})), table)
    assert re.fullmatch(r"torch 9.9.0 against 9.8.0: 0 of \d+ names changed", line)


def test_a_release_that_the_table_does_not_have_is_told(tmp_path: Path) -> None:
    [line] = check(Sources(write_wheel(tmp_path, {})), Table.read())
    assert line == "torch 9.9.0 is not in the table: make versions-new VERSION=9.9.0"


def test_the_table_is_that_of_the_hooks(tmp_path: Path) -> None:
    """It has every row with today's meaning; `make pages` writes it."""
    Table.read().write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == TABLE.read_text()
    assert set(READS) <= {row.name for row in rows()}


def test_every_row_is_in_a_supported_release() -> None:
    """A row whose form is missing everywhere names nothing."""
    known = Table.read()
    for row in rows():
        assert any(known.form(row, release) != "missing" for release in known.releases[row.package]), row.name


def test_the_torch_that_is_installed_is_as_the_table_says() -> None:
    assert check(Sources(SITE), Table.read()) == []


def test_bad_input_is_one_line() -> None:
    with pytest.raises(SystemExit, match="hook_contract: /nowhere is neither a wheel nor a folder"):
        main(["check", "/nowhere"])
    assert Row("torch", "").describe(Sources(SITE)) == "module"
