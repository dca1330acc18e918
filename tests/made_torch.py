"""Make a torch that does not exist: the installed one under another version, with sources that differ."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from pathlib import Path

INSTALLED = Path(sysconfig.get_path("purelib")) / "torch"


def make_torch(site: Path, version: str, changes: Mapping[str, tuple[str, str]] | None = None) -> Path:
    """Make the package ``torch`` in the folder ``site``, and return the package's folder.

    All files are links to the installed ones, but for ``version.py`` and for those in ``changes``: path in
    the package -> text to replace and its replacement. Python finds a package where its link is, so the
    modules of the copy find each other in the copy.
    """
    copy = site / "torch"
    _link(INSTALLED, copy)
    lines = (INSTALLED / "version.py").read_text().splitlines()
    changed = [f"__version__ = {version!r}" if line.startswith("__version__ =") else line for line in lines]
    assert changed != lines
    _write(copy, "version.py", "\n".join(changed) + "\n")
    for path, (before, after) in (changes or {}).items():
        text = (INSTALLED / path).read_text()
        assert before in text, f"{path} has no {before!r}"
        _write(copy, path, text.replace(before, after))
    return copy


def _write(copy: Path, path: str, text: str) -> None:
    """Write a file of the copy; the folders on the way become folders of links."""
    folder = copy
    for part in path.split("/")[:-1]:
        folder = folder / part
        if folder.is_symlink():
            target = folder.resolve()
            folder.unlink()
            _link(target, folder)
    file = copy / path
    file.unlink(missing_ok=True)
    file.write_text(text)


def _link(source: Path, copy: Path) -> None:
    """Make a folder whose entries are links to those of another one."""
    copy.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name != "__pycache__":
            (copy / entry.name).symlink_to(entry)
