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
from collections.abc import Iterator
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
    if not importhook.hook(module, "TritonBundler.read_and_emit", functools.partial(_emit, recorded)):
        _log.debug("this torch has no TritonBundler.read_and_emit: files of FX entries may count as new")
    if apart and not importhook.hook(module, "TritonBundler.collect", _collect):
        _log.debug("this torch has no TritonBundler.collect: kernels may travel twice")


def _hook_heuristics(recorded: Recorded, module: ModuleType) -> None:
    body = functools.partial(_reload, recorded)
    if not importhook.hook(module, "StaticTritonCompileResult.reload_cubin_path", body):
        _log.debug("this torch has no reload_cubin_path: binaries that are not read may be left out")


def _collect(call: importhook.Call) -> Any:
    """Runs when an FX entry is made: the autotuners stay, they are nowhere else. Until torch 2.7 a bundle is
    a list of kernels alone, and stays as it is."""
    bundle, metadata = call()
    if isinstance(bundle, list):
        return bundle, metadata
    return dataclasses.replace(bundle, kernel_artifacts=[]), metadata


def _emit(recorded: Recorded, call: importhook.Call) -> Any:
    """Runs when an FX entry is hit."""
    bundle = call.argument("bundle")
    absent = [folder for folder in _folders(bundle) if not any(_files(folder))]
    answer = call()
    for folder in absent:
        recorded.emitted.update(_files(folder))
    return answer


def _reload(recorded: Recorded, call: importhook.Call) -> Any:
    answer = call()
    if path := call.args[0].kernel.cubin_path:
        recorded.looked_at.add(Path(path))
    return answer


def _folders(bundle: Any) -> list[Path]:
    from torch._inductor.runtime.runtime_utils import triton_cache_dir

    return [Path(triton_cache_dir(held.device), held.kernel_hash) for held in bundle.kernel_artifacts]


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (Path(entry.path) for entry in os.scandir(folder) if entry.is_file())
