"""Decides who may write on the way to a folder: each folder from the root on is opened by its descriptor, and
the kernel's table of mounts says what is a volume of this pod.

What is not known to be this user's or root's alone is refused. Lists of groups say nothing here: they do not
name anyone who has a group as the first one, has it in another container, or got it from a directory server.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from pathlib import Path

from ..wire.errors import Untrusted

_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open a folder on the way, also one that may only be passed through, and refuse a link."""
_MAX_LINKS = 40
"""Largest number of links on the way to the root, as many as Linux follows."""
_OTHER_USER = "set CACHESVC_STORE to a folder below your own ones; a store of an agent is CACHESVC_NODE_STORE"
"""Hint for a store that belongs to another user."""
_EMPTY_DIR = re.compile(r"(/\S*/pods/[0-9a-f-]{32,36})/volumes/kubernetes\.io~empty-dir/\S+")
"""Matches where kubelet keeps an `emptyDir` on the node's disk; the group is the folder of the pod."""

_OCTAL = re.compile(r"\\([0-7]{3})")
"""Matches how the table of mounts writes a space and a few other characters."""


def refuse_foreign(path: Path) -> None:
    """Raise ``Untrusted`` for what is no folder, or a folder in which another user may write."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise Untrusted(f"node store: {path} is not a folder")
    if status.st_uid != os.geteuid():
        raise Untrusted(f"node store: {path} belongs to user {status.st_uid}", _OTHER_USER)
    if status.st_mode & 0o022:
        raise Untrusted(f"node store: others may write to {path}", f"chmod go-w {path}")


def refuse_foreign_path(path: Path) -> None:
    """Raise ``Untrusted`` if another user could put another folder into the place of ``path``.

    This is so where ``path`` or a folder above it belongs to another user than this one and root, is a link
    of such a user, or may be written by a group or by others and is not sticky. Passes over folders that are
    missing. A user of whom this process's user namespace knows nothing is as good as root (Apptainer,
    bubblewrap), and an `emptyDir` belongs to its pod.
    """
    walk = _Walk(path)
    try:
        walk.to_the_end()
    finally:
        walk.close()


def foreign_file(handle: int) -> str:
    """Return why an open file says nothing that this process may believe: another user may have written it,
    or it is no file; else an empty text."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_uid not in (0, os.geteuid()) and not _is_unmapped(status.st_uid):
        return f"it belongs to user {status.st_uid}"
    return f"others may write it (mode {status.st_mode & 0o777:03o})" if status.st_mode & 0o022 else ""


def has_mount(folder: Path, path: Path) -> bool:
    """Return whether something is mounted on the way from a folder to a path in it, or below the path: others
    may reach what is there by another way. Without the kernel's table of mounts, on Linux, it may be so."""
    folder, path = folder.resolve(), path.resolve()
    try:
        rows = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
        points = [Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), row.split(" ")[4])) for row in rows]
    except (OSError, IndexError):
        return sys.platform == "linux"
    return any(
        point != folder
        and point.is_relative_to(folder)
        and (path.is_relative_to(point) or point.is_relative_to(path))
        for point in points
    )


def make_folders(path: Path) -> None:
    """Make a private folder, and those above it that are missing. Whatever the umask is, no one else may
    write there: the store would refuse its own folder else. Raise ``OSError``."""
    for folder in reversed(path.parents):
        if not os.path.lexists(folder):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o755)
    path.mkdir(mode=0o700, exist_ok=True)


class _Walk:
    """Goes from the root to a folder, and looks at each one on the way."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._links = _MAX_LINKS
        self._here = -1
        self._at = Path("/")
        """The folder where the walk is, by its own names."""
        self._left: list[str] = []
        """The names that are still to be entered, the next one at the end."""
        self._lead_to(path.absolute())

    def close(self) -> None:
        """Close the descriptor of the folder where the walk is."""
        self._enter(-1)

    def to_the_end(self) -> None:
        """Enter each folder. Raise ``Untrusted`` as `refuse_foreign_path` does."""
        while self._left:
            name = self._left.pop()
            try:
                below = os.open(name, _STEP, dir_fd=self._here)
            except OSError:
                if not stat.S_ISLNK(self._mode(name)):  # not there yet, a file, or not to be seen:
                    return  # no store can be opened there
                self._follow(name)
            else:
                self._look(below, self._at.parent if name == ".." else self._at / name)

    def _lead_to(self, target: Path) -> None:
        """Go on from the root, or from here if ``target`` is relative."""
        names = list(target.parts)
        if target.is_absolute():
            names = names[1:]
            self._look(os.open("/", _STEP), Path("/"))
        self._left += reversed(names)

    def _mode(self, name: str) -> int:
        try:
            return os.stat(name, dir_fd=self._here, follow_symlinks=False).st_mode
        except OSError:
            return 0

    def _follow(self, name: str) -> None:
        """Go on where a link leads."""
        link = self._at / name
        status = os.stat(name, dir_fd=self._here, follow_symlinks=False)
        if status.st_uid not in (0, os.geteuid()) and not _is_of_host(self._here, status):
            raise Untrusted(f"node store {self._path}: {link} belongs to user {status.st_uid}", _OTHER_USER)
        if not self._links:
            raise Untrusted(f"node store {self._path}: too many links at {link}", "set CACHESVC_STORE")
        self._links -= 1
        self._lead_to(Path(os.readlink(name, dir_fd=self._here)))

    def _look(self, folder: int, at: Path) -> None:
        """Enter a folder, unless another user may write there."""
        above = self._here
        status = os.fstat(folder)
        is_theirs = status.st_uid not in (0, os.geteuid()) and not _is_of_host(folder, status)
        is_open = bool(status.st_mode & 0o022) and not status.st_mode & stat.S_ISVTX
        is_refused = (is_theirs or is_open) and not _is_volume_of_this_pod(folder, above)
        self._enter(folder)
        self._at = at
        if is_refused and is_theirs:
            raise Untrusted(f"node store {self._path}: {at} belongs to user {status.st_uid}", _OTHER_USER)
        if is_refused:
            raise Untrusted(
                f"node store {self._path}: others may write to {at}, and so replace what is in it",
                f"chmod go-w {at}, or set CACHESVC_STORE",
            )

    def _enter(self, folder: int) -> None:
        if self._here >= 0:
            os.close(self._here)
        self._here = folder


def _is_of_host(folder: int, status: os.stat_result) -> bool:
    """Return whether a folder, or a link in it, belongs to a user who has no number in this user namespace,
    and this process may not rename what others put there."""
    if not _is_unmapped(status.st_uid):
        return False
    return bool(status.st_mode & stat.S_ISVTX) or not os.access(
        ".", os.W_OK, dir_fd=folder, effective_ids=True
    )


def _is_unmapped(user: int) -> bool:
    """Return whether a number stands for all users who have none in this user namespace.

    Linux shows such an owner as the *overflow* user, 65534: user_namespaces(7). Where that number has a user
    of its own, as on a host, it is this user.
    """
    try:
        unknown = int(Path("/proc/sys/kernel/overflowuid").read_text())
        known = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        is_mapped = any(int(first) <= unknown < int(first) + int(count) for first, _, count in known)
    except (OSError, ValueError):  # no Linux
        return False
    return user == unknown and not is_mapped


def _is_volume_of_this_pod(folder: int, above: int) -> bool:
    """Return whether a folder is where an `emptyDir` of this pod is mounted: its containers alone have it.

    Kubelet makes it open to all and never sticky. The table of mounts is the kernel's: it names the folder of
    the node's disk that is mounted, and so the pod, which is this one where another mount of this container
    comes from the pod's own files. One in memory has no such name, and no other volume is known to be
    no one else's: not a `hostPath`, not a claim, not a bind mount of Docker.
    """
    try:
        number = _mount_of(folder)
        if above < 0 or number == _mount_of(above):
            return False
        rows = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        [(disk, root)] = [(row[2], row[3]) for row in rows if row[0] == number]
    except (OSError, ValueError, IndexError):
        return False
    found = _EMPTY_DIR.fullmatch(root)
    if found is None:
        return False
    own = (f"{found[1]}/etc-hosts", f"{found[1]}/containers/")
    return any(row[2] == disk and row[3].startswith(own) for row in rows)


def _mount_of(folder: int) -> str:
    """Return the number of the mount in which an open folder lies. Raise ``OSError`` or ``IndexError``."""
    return Path(f"/proc/self/fdinfo/{folder}").read_text().partition("mnt_id:")[2].split()[0]
