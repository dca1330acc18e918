"""Read which commit a folder is a checkout of, from the files of Git.

`git` itself is not started: a repository's settings name programs that it runs, and this process has the
signing key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[A-Za-z0-9._/+@-]{1,250}")
_SCP = re.compile(r"(?:[^/@\s]+@)?([A-Za-z0-9.-]+):(?!//)([^\s]+)")
"""Matches ``user@host:path``, the short form of an SSH address."""
_URL = re.compile(r"\s*url\s*=\s*(\S+)\s*")
_SCHEMES = ("https", "http", "ssh", "git")
_MAX_BYTES = 4 << 20
"""Largest number of bytes of a file of Git that is read."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """Describes a checkout. ``uri``: ``git+URL@ref`` of the remote *origin*, without user and password; empty
    if there is no such remote."""

    commit: str
    uri: str = ""


def find_checkout(folder: Path) -> Checkout | None:
    """Return what ``folder`` is a checkout of; ``None`` if it is none, or if its files cannot be read."""
    try:
        for place in (folder, *folder.parents):
            if (place / ".git").exists():
                return _read(_git_folder(place / ".git"))
    except (OSError, ValueError):
        return None
    return None


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


def _read(git: Path) -> Checkout | None:
    common = git
    if (git / "commondir").exists():
        common = (git / _text(git / "commondir").strip()).resolve()
    head = _text(git / "HEAD").strip()
    ref = head.removeprefix("ref:").strip() if head.startswith("ref:") else ""
    commit = _commit_of(ref, git, common) if ref else head
    if not _COMMIT.fullmatch(commit):
        return None
    return Checkout(commit, source_uri(_origin(common), ref))


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
