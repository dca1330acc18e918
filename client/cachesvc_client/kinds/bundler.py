"""Kernels travel once: what FX entries hold of Triton's folder (PyTorch's ``TritonBundler``).

An FX entry holds a copy of every kernel folder that its compilation touched, with all the intermediate code
and (2.11) the candidates that lost. On a hit PyTorch writes a folder out again if it is absent or empty, on
the compile thread, and then asks for each candidate of a pickled autotuner whether its binary is there
(``reload_cubin_path``); one missing binary discards the autotuner. Read in torch 2.11 and 2.13
(``torch/_inductor/{triton_bundler,compile_fx}.py``, ``runtime/triton_heuristics.py``).

So a kernel is in a pack twice unless one copy stays at home, and it is the entry's: Triton's folder can be
cut to what is read (mostly one binary of eight files), is installed by several threads before the compile
asks, and is also where kernels are looked for that no entry holds as an autotuner. An entry without copies is
one that PyTorch makes itself where bundling finds nothing; if the folder is lost, kernels are compiled again.

Only `warm` uses this: a service's own FX entries stay as PyTorch makes them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import importhook

_log = logging.getLogger("cachesvc")

_BUNDLER = "torch._inductor.triton_bundler"
_HEURISTICS = "torch._inductor.runtime.triton_heuristics"


class Recorded:
    """What a process did with kernels of FX entries that it hit; absolute paths.

    ``emitted``: files that PyTorch wrote out of an entry: not new, the entry held them. ``looked_at``:
    binaries that had to be there, whether or not they were read: the losers of a choice are not.
    """

    def __init__(self) -> None:
        self.emitted: set[Path] = set()
        self.looked_at: set[Path] = set()


def install_hooks(recorded: Recorded, *, apart: bool) -> None:
    """Puts the hooks in place when the application imports Inductor. ``apart``: FX entries that this process
    saves hold no copies of kernels, so Triton's folder has to travel with them."""
    importhook.when_imported(_BUNDLER, functools.partial(_hook_bundler, recorded, apart))
    importhook.when_imported(_HEURISTICS, functools.partial(_hook_heuristics, recorded))


def _hook_bundler(recorded: Recorded, apart: bool, module: ModuleType) -> None:
    if not importhook.wrap(module, "TritonBundler.read_and_emit", functools.partial(_around_emit, recorded)):
        _log.debug("this torch has no TritonBundler.read_and_emit: files of FX entries may count as new")
    if apart and not importhook.wrap(module, "TritonBundler.collect", _around_collect):
        _log.debug("this torch has no TritonBundler.collect: kernels may travel twice")


def _hook_heuristics(recorded: Recorded, module: ModuleType) -> None:
    around = functools.partial(_around_reload, recorded)
    if not importhook.wrap(module, "StaticTritonCompileResult.reload_cubin_path", around):
        _log.debug("this torch has no reload_cubin_path: binaries that are not read may be left out")


def _around_collect(original: Callable[..., Any]) -> Callable[..., Any]:
    """When an FX entry is made: the autotuners stay, they are nowhere else."""

    @functools.wraps(original)
    def collect(cls: Any) -> Any:
        bundle, metadata = original(cls)
        return dataclasses.replace(bundle, kernel_artifacts=[]), metadata

    return collect


def _around_emit(recorded: Recorded, original: Callable[..., Any]) -> Callable[..., Any]:
    """When an FX entry is hit."""

    @functools.wraps(original)
    def read_and_emit(bundle: Any) -> Any:
        absent = [folder for folder in _folders(bundle) if not any(_files(folder))]
        result = original(bundle)
        for folder in absent:
            recorded.emitted.update(_files(folder))
        return result

    return read_and_emit


def _around_reload(recorded: Recorded, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reload_cubin_path(self: Any) -> Any:
        result = original(self)
        if self.kernel.cubin_path:
            recorded.looked_at.add(Path(self.kernel.cubin_path))
        return result

    return reload_cubin_path


def _folders(bundle: Any) -> list[Path]:
    from torch._inductor.runtime.runtime_utils import triton_cache_dir

    return [Path(triton_cache_dir(held.device), held.kernel_hash) for held in bundle.kernel_artifacts]


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (Path(entry.path) for entry in os.scandir(folder) if entry.is_file())
