"""Read which commit a folder is a checkout of, from the files of Git.

`git` itself is started for one question alone, `tree_of`: a repository's settings name programs that it runs,
and this process has the signing key.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from cachesvc_client.wire.errors import printable

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[A-Za-z0-9._/+@-]{1,250}")
_SCP = re.compile(r"(?:[^/@\s]+@)?([A-Za-z0-9.-]+):(?!//)([^\s]+)")
"""Matches ``user@host:path``, the short form of an SSH address."""
_URL = re.compile(r"\s*url\s*=\s*(\S+)\s*")
_SCHEMES = ("https", "http", "ssh", "git")
_MAX_BYTES = 4 << 20
"""Largest number of bytes of a file of Git that is read."""
_RUNS_PROGRAMS = re.compile(r"^\s*\[\s*(?:filter|include|includeif)\b", re.IGNORECASE | re.MULTILINE)
"""Matches the settings that name programs for `git status`, or other files of settings."""
_ASK = (
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "protocol.allow=never", "-c", "safe.directory=*", "-c", "core.quotePath=false"),
    *("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=normal"),
    "--ignore-submodules=dirty",
)
"""Asks for the files that are not as the commit has them, and runs no program of the repository."""
_ASK_SECONDS = 20.0
_MAX_NAMED = 20
"""Largest number of files that are named."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """Describes a checkout. ``uri``: ``git+URL@ref`` of the remote *origin*, without user and password; empty
    if there is no such remote. ``root``: the folder of its files. ``settings``: the files of its settings."""

    commit: str
    uri: str
    root: Path
    settings: tuple[Path, ...]


def find_checkout(folder: Path) -> Checkout | None:
    """Return what ``folder`` is a checkout of; ``None`` if it is none, or if its files cannot be read."""
    try:
        for place in (folder, *folder.parents):
            if (place / ".git").exists():
                return _read(place, _git_folder(place / ".git"))
    except (OSError, ValueError):
        return None
    return None


@dataclass(frozen=True, slots=True)
class Tree:
    """Describes how the files of a checkout differ from its commit. ``changed``: how many do, those that Git
    neither knows nor ignores among them; ``None`` if that is not known. ``files``: some of them."""

    changed: int | None
    files: tuple[str, ...] = ()


def tree_of(checkout: Checkout) -> Tree:
    """Return how the files of a checkout differ from its commit, as `git status` says.

    It is not asked where the checkout's settings name a filter or further settings, which are programs that
    another one chose.
    """
    try:
        if any(_RUNS_PROGRAMS.search(_text(file)) for file in checkout.settings if file.exists()):
            return Tree(None)
        environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1"}
        environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
        asked = subprocess.run(
            _ASK, cwd=checkout.root, env=environ, capture_output=True, timeout=_ASK_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return Tree(None)
    lines = sorted(line for line in asked.stdout.decode(errors="replace").split("\0") if line)
    return Tree(len(lines), tuple(printable(line[3:])[:200] for line in lines[:_MAX_NAMED]))


def source_uri(url: str, ref: str = "") -> str:
    """Return ``git+URL@ref`` without user, password, query and fragment; empty for an address that is none of
    a repository on a server."""
    short = _SCP.fullmatch(url)
    if short:
        url = f"ssh://{short[1]}/{short[2]}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if parts.scheme not in _SCHEMES or not host:
        return ""
    place = f"git+{parts.scheme}://{host}{f':{port}' if port else ''}{quote(parts.path, safe='/._~+-')}"
    return f"{place}@{ref}" if _REF.fullmatch(ref) else place


def _git_folder(path: Path) -> Path:
    """Return the folder of Git; in a second work tree a file names it."""
    if path.is_dir():
        return path
    target = _text(path).removeprefix("gitdir:").strip()
    return (path.parent / target).resolve()


def _read(root: Path, git: Path) -> Checkout | None:
    common = git
    if (git / "commondir").exists():
        common = (git / _text(git / "commondir").strip()).resolve()
    head = _text(git / "HEAD").strip()
    ref = head.removeprefix("ref:").strip() if head.startswith("ref:") else ""
    commit = _commit_of(ref, git, common) if ref else head
    if not _COMMIT.fullmatch(commit):
        return None
    settings = (common / "config", git / "config.worktree")
    return Checkout(commit, source_uri(_origin(common), ref), root, settings)


def _commit_of(ref: str, git: Path, common: Path) -> str:
    if not _REF.fullmatch(ref) or ".." in ref:
        return ""
    for folder in (git, common):
        if (folder / ref).is_file():
            return _text(folder / ref).strip()
    for line in _text(common / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""


def _origin(common: Path) -> str:
    inside = False
    for line in _text(common / "config").splitlines():
        if line.strip().startswith("["):
            inside = line.strip() == '[remote "origin"]'
        elif inside and (match := _URL.fullmatch(line)):
            return match[1]
    return ""


def _text(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES).decode(errors="replace")
