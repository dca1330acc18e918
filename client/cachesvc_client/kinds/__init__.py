"""The compiler caches that cachesvc knows, and where they lie in this process."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from . import cuda, inductor, triton
from .rules import KindRules

RULES: Mapping[str, KindRules] = {kind.NAME: kind.RULES for kind in (inductor, triton, cuda)}
VARIABLES = (inductor.VARIABLE, triton.VARIABLE, cuda.VARIABLE)
"""With which the user names the folders."""


class Folders:
    """Decides where each kind lies: the user's folder if the user set one, else a private one.

    PyTorch sets its variable itself when it first needs a folder, so what *the user set* is what was there
    when this was made, unless it is exactly what PyTorch would have chosen, or a private folder of another
    process of cachesvc's, from which this one inherited the variable. Nothing that the user set is
    overwritten.
    """

    def __init__(self) -> None:
        inductor_set = _set_by_user(inductor.VARIABLE)
        if inductor_set and "torch" in sys.modules and inductor_set == _pytorch_default():
            inductor_set = None
        triton_set = _set_by_user(triton.VARIABLE)
        if triton_set and inductor_set is None and triton_set.parent == _pytorch_default() / "triton":
            triton_set = None
        self._users_inductor, self._users_triton = inductor_set, triton_set
        self._inductor = inductor_set
        self._triton = triton_set
        self._cuda = _set_by_user(cuda.VARIABLE)
        self._cuda_is_ours = False
        self._earlier: list[dict[str, Path]] = []

    def settle_drivers(self, private: Callable[[], Path]) -> None:
        """Decides where the CUDA driver keeps what it compiles, unless the user did. It asks once, when CUDA
        is initialised: to be called as early as can be. One folder serves all environments, for its entries
        say what they are of."""
        if self._cuda is None:
            self._cuda, self._cuda_is_ours = private(), True
            os.environ[cuda.VARIABLE] = str(self._cuda)

    def leave_drivers(self) -> None:
        """Takes that back: this process goes on as if cachesvc were not there."""
        if self._cuda_is_ours and os.environ.get(cuda.VARIABLE) == str(self._cuda):
            del os.environ[cuda.VARIABLE]
            self._cuda, self._cuda_is_ours = None, False

    @property
    def private(self) -> bool:
        """Whether Inductor's or Triton's folder is chosen here, and not by the user."""
        return self._users_inductor is None

    def settle(self, private: Callable[[], Path]) -> None:
        """Decides what the user left open, in a folder that ``private`` makes if it is needed. To be called
        before the first compile, and again when another private folder takes the place of this one.

        Triton's folder is named even where the user chose Inductor's: PyTorch would name
        ``triton/<device>`` in it at the first kernel, too late for the driver's helper library, which Triton
        loads, or builds, before that. One folder serves all devices: the device is not in Triton's keys.
        """
        before = self.roots()
        if self._users_inductor is None:
            self._inductor = private() / "inductor"
            os.environ[inductor.VARIABLE] = str(self._inductor)
        assert self._inductor is not None
        if self._users_triton is None:
            self._triton = self._inductor / "triton" / "0"
            os.environ[triton.VARIABLE] = str(self._triton)
        if before and before != self.roots():
            self._earlier.insert(0, before)

    def forget_earlier(self) -> None:
        """Drops the folders that were settled before the present ones: nothing was compiled in them."""
        self._earlier.clear()

    def roots(self) -> dict[str, Path]:
        """Kind -> folder; empty before `settle` if the user set none."""
        if self._inductor is None:
            return {}
        roots = {
            inductor.NAME: self._inductor,
            triton.NAME: self._triton or self._inductor / "triton" / "0",
        }
        return roots if self._cuda is None else {**roots, cuda.NAME: self._cuda}

    def every_roots(self) -> list[dict[str, Path]]:
        """`roots` of the present folders, then of those that this process compiled in before."""
        present = self.roots()
        return [present, *self._earlier] if present else []


_PRIVATE = re.compile(r"/v1/folders/[0-9a-f]{64}(/inductor(/triton/0)?)?$")
"""How the path of a private folder ends, see `node.store`."""


def _set_by_user(variable: str) -> Path | None:
    """The folder that the user named. A private folder was named by the process that started this one, and
    holds what that process trusts: the variable is removed, so that this process never opens it by chance."""
    named = os.environ.get(variable)
    if named and _PRIVATE.search(named):
        del os.environ[variable]
        return None
    return Path(named) if named else None


def _pytorch_default() -> Path:
    """``torch._inductor.runtime.cache_dir_utils.default_cache_dir``, without importing it."""
    import getpass
    import re
    import tempfile

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = str(os.getuid())
    return Path(tempfile.gettempdir()) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))
