"""Decides where the folder of each kind lies in this process."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .kind import Kind

_PRIVATE = r"/v1/folders/[0-9a-f]{64}(/inductor(/[a-z0-9_]+(/0|/jit/[0-9a-f]{32})?)?)?$"
"""The end of a path of a private folder, see `node.store`."""


class Folders:
    """Gives each kind the folder that the user named, or else one of cachesvc's.

    PyTorch sets variables itself when it first needs a folder. So what *the user named* is what the variables
    said when this object was made, unless a kind says that its compiler chose the value, SGLang chose it, or
    the value is a private folder of another process, from which this process inherited the variable. Nothing
    that the user named is changed, also where the program names it later: then the compiler has *left* the
    folder of its kind, and what is restored there is of no use to it.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self._kinds = kinds
        self._named: dict[str, Path] = {}
        for kind in kinds:
            value = _inherit(kind.folder.variable)
            named = kind.folder.named(value, self._named) if value is not None else None
            if named is not None:
                self._named[kind.name] = Path(os.path.abspath(named))
        self._values = {kind.folder.variable: {_value_of(kind)} for kind in kinds}
        """The values of each variable that point to a folder of this object, or are the compiler's choice:
        absolute paths, as the program may go to another working directory."""
        self._roots = dict(self._named)
        self._early: list[Kind] = []
        """The kinds whose variable `settle_early` has set."""
        self._earlier: list[dict[str, Path]] = []
        self.aside = ""
        """Why the compilers were pointed away from the folders of this object; empty while they use them."""

    def settle_early(self, folder: Callable[[str], Path]) -> None:
        """Decide the folders that do not depend on the environment; ``folder`` makes one for a kind's name.

        To be called as early as possible: the CUDA driver reads its variable once, when CUDA is initialised.
        """
        for kind in self._kinds:
            if kind.folder.home == "process" and kind.name not in self._roots:
                self._set(kind, folder(kind.name))
                self._early.append(kind)

    def leave_early(self) -> None:
        """Take back what `settle_early` did: this process goes on as if cachesvc were not there."""
        while self._early:
            kind = self._early.pop()
            if os.environ.get(kind.folder.variable) == str(self._roots.pop(kind.name)):
                del os.environ[kind.folder.variable]

    @property
    def private(self) -> bool:
        """Return whether any folder belongs to the trust scope, because the user named none for its kind."""
        return any(kind.folder.home == "private" and kind.name not in self._named for kind in self._kinds)

    def settle(self, private: Callable[[], Path]) -> None:
        """Decide what the user left open, in a folder that ``private`` makes if a kind needs it.

        To be called before the first compile, and again when another private folder takes the place of this
        one. A folder inside of the first kind's is decided even where the user named that one: PyTorch would
        name Triton's at the first kernel, too late for the driver's helper library, which Triton loads, or
        builds, before that.
        """
        self._read_again()
        before, first = self.roots(), self._kinds[0]
        place = private() if self.private else None
        for kind in self._kinds:
            if kind.name in self._named or kind.folder.home == "process":
                continue
            if kind.folder.home == "private":
                assert place is not None
                self._set(kind, place / kind.folder.place)
            else:
                self._set(kind, self._roots[first.name] / kind.folder.place, unless=self.left(first.name))
        if before and before != self.roots():
            self._earlier.insert(0, before)

    def point_again(self) -> None:
        """Set the variables again that a program has changed since they were set here."""
        for kind in self._kinds:
            if kind.folder.sets_variable and kind.name in self._roots and not self.aside:
                os.environ[kind.folder.variable] = str(self._roots[kind.name])

    def own(self) -> Path | None:
        """Return the folder of cachesvc's that PyTorch uses; ``None`` if it uses another."""
        first = self._kinds[0].name
        return None if first in self._named or self.left(first) else self._roots.get(first)

    def step_aside(self, why: str) -> Callable[[], None]:
        """Let each compiler choose its own folder, as if nothing had been set here. Return a function that
        takes that back. ``why``: what `left` returns from now on."""
        self.aside = why
        ours = {
            kind.folder.variable: str(root)
            for kind in self._kinds
            if kind.folder.home != "process" and kind.name not in self._named
            if (root := self._roots.get(kind.name)) is not None
            if os.environ.get(kind.folder.variable) == str(root)
        }
        for variable in ours:
            del os.environ[variable]

        def come_back() -> None:
            self.aside = ""
            os.environ.update(ours)

        return come_back

    def in_use(self) -> bool:
        """Return whether each variable still says what was set here: no program has chosen another folder."""
        return not any(self.left(kind.name) for kind in self._kinds if kind.name in self._roots)

    def left(self, name: str) -> str:
        """Return the words ``VARIABLE=FOLDER`` with which the program has chosen another folder for a kind
        since this object was made, or why `step_aside` was called; an empty text if neither. Takes
        microseconds."""
        if self.aside:
            return self.aside
        kind = next(kind for kind in self._kinds if kind.name == name)
        value = _value_of(kind)
        if not kind.folder.sets_variable or value in self._values[kind.folder.variable]:
            return ""
        if not value and kind.folder.home == "inside":
            return ""  # PyTorch names it again, by the folder that it is inside of
        if kind.name not in self._roots and not self._is_users(kind, value):
            return ""
        return f"{kind.folder.variable}={value}"

    def left_first(self) -> str:
        """Return the words of `left` for the kind in whose folder the others lie."""
        return self.left(self._kinds[0].name)

    def _is_users(self, kind: Kind, value: str) -> bool:
        """Return whether no compiler has chosen a value of a kind's variable by itself."""
        named = Path(value) if value and not chosen_by_sglang(kind.folder.variable, value) else None
        return named is not None and kind.folder.named(named, self._named) is not None

    def forget_earlier(self) -> None:
        """Drop the folders that were settled before the present ones: nothing was compiled in them."""
        self._earlier.clear()

    def roots(self) -> dict[str, Path]:
        """Return the folder of each kind that has one; empty until the first kind has one."""
        if self._kinds[0].name not in self._roots:
            return {}
        first = self._roots[self._kinds[0].name]
        inside = {
            kind.name: first / kind.folder.place for kind in self._kinds if kind.folder.home == "inside"
        }
        return {**inside, **self._roots}

    def every_roots(self) -> list[dict[str, Path]]:
        """Return `roots` of the present folders, then of those that this process compiled in before."""
        present = self.roots()
        return [present, *self._earlier] if present else []

    def _set(self, kind: Kind, folder: Path, unless: str = "") -> None:
        """Give a kind a folder, and name it to the compiler, ``unless`` the program has chosen another."""
        left = unless or self.left(kind.name)
        if kind.name not in self._roots:
            self._values[kind.folder.variable].clear()
        self._roots[kind.name] = folder
        if kind.folder.sets_variable and not left:
            os.environ[kind.folder.variable] = str(folder)
        self._values[kind.folder.variable].add(str(folder))

    def _read_again(self) -> None:
        """Take what the program has named since this object was made, as long as no code of PyTorch's can
        have named it for the length of a block (``fresh_cache``), in which nothing is to be found."""
        if self._kinds[0].name in self._roots or "torch._inductor.utils" in sys.modules:
            return
        for kind in self._kinds:
            if self.left(kind.name) and kind.name not in self._roots:
                value = _value_of(kind)
                named = kind.folder.named(Path(value), self._named) if value else None
                if named is not None:
                    self._named[kind.name] = self._roots[kind.name] = named
                    self._values[kind.folder.variable].add(value)


def _value_of(kind: Kind) -> str:
    value = os.environ.get(kind.folder.variable, "")
    return os.path.abspath(value) if value else ""


def _inherit(variable: str) -> Path | None:
    """Return the folder that the variable names.

    A private folder was named by the process that started this one, and holds what that process trusts: the
    variable is removed, so that this process never opens the folder by chance.
    """
    named = os.environ.get(variable)
    if named and re.search(_PRIVATE, named):
        del os.environ[variable]
        return None
    return Path(named) if named and not chosen_by_sglang(variable, named) else None


def chosen_by_sglang(variable: str, value: str) -> bool:
    """Return whether SGLang chose this value of a variable in this process. Never raises.

    ``import sglang`` names folders below ``SGLANG_CACHE_DIR`` for Triton, Inductor, the CUDA driver and
    TileLang, where their variables name none (``redirect_third_party_caches`` in ``sglang.srt.environ``, read
    in 0.5.23). Such a value names no folder of the user's: what lies there was left by any process, and a
    process that attached before ``import sglang`` would not see it.
    """
    module = sys.modules.get("sglang.srt.environ")
    if module is None:
        return False
    try:
        return bool(module.third_party_cache_defaults().get(variable) == value)
    except Exception:  # noqa: BLE001 - another release: then the value is the user's
        return False
