"""The compiler caches that cachesvc knows, and where they lie in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from . import cuda, inductor, triton
from .rules import KindRules

RULES: Mapping[str, KindRules] = {kind.NAME: kind.RULES for kind in (inductor, triton, cuda)}
VARIABLES = (inductor.VARIABLE, triton.VARIABLE, cuda.VARIABLE)
"""With which the user names the folders."""


class Folders:
    """Decides once where each kind lies: the user's folder if the user set one, else a private one.

    PyTorch sets its variable itself when it first needs a folder, so what *the user set* is what was
    there when this was made, unless it is exactly what PyTorch would have chosen. Nothing that the
    user set is overwritten.
    """

    def __init__(self, compiled_already: bool = False) -> None:
        """``compiled_already``: this process has compiled, so its folder is settled whoever set it."""
        inductor_set = os.environ.get(inductor.VARIABLE)
        by_pytorch = "torch" in sys.modules and not compiled_already
        if inductor_set and by_pytorch and Path(inductor_set) == _pytorch_default():
            inductor_set = None
        self._inductor = Path(inductor_set) if inductor_set else None
        triton_set = os.environ.get(triton.VARIABLE)
        if triton_set and inductor_set is None and Path(triton_set).parent == _pytorch_default() / "triton":
            triton_set = None
        self._triton = Path(triton_set) if triton_set else None
        cuda_set = os.environ.get(cuda.VARIABLE)
        self._cuda = Path(cuda_set) if cuda_set else None
        self._cuda_is_ours = False

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

    def settle(self, private: Callable[[], Path]) -> None:
        """Decides what the user left open, in a folder that ``private`` makes if it is needed. To be called
        before the first compile.

        Triton's folder is named even where the user chose Inductor's: PyTorch would name
        ``triton/<device>`` in it at the first kernel, too late for the driver's helper library, which Triton
        loads, or builds, before that. One folder serves all devices: the device is not in Triton's keys.
        """
        if self._inductor is None:
            self._inductor = private() / "inductor"
            os.environ[inductor.VARIABLE] = str(self._inductor)
        if self._triton is None:
            self._triton = self._inductor / "triton" / "0"
            os.environ[triton.VARIABLE] = str(self._triton)

    def roots(self) -> dict[str, Path]:
        """Kind -> folder; empty before `settle` if the user set none."""
        if self._inductor is None:
            return {}
        roots = {
            inductor.NAME: self._inductor,
            triton.NAME: self._triton or self._inductor / "triton" / "0",
        }
        return roots if self._cuda is None else {**roots, cuda.NAME: self._cuda}


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
