"""Keep copies of Triton's kernels out of FX entries (PyTorch's ``TritonBundler``); record what entries write.

An FX entry holds a copy of every kernel folder that its compilation touched, with all the intermediate code
and (2.11) the candidates that lost. On a hit PyTorch writes a folder out again if it is absent or empty, on
the compile thread. Then it looks for the binary of each candidate of a pickled autotuner
(``reload_cubin_path``); one missing binary discards the autotuner. Read in torch 2.11 and 2.13
(``torch/_inductor/{triton_bundler,compile_fx}.py``, ``runtime/triton_heuristics.py``).

So a pack would hold each kernel twice. `warm` keeps the copy in Triton's folder and drops the one in the
entry: Triton's folder can be cut to the files that are read (mostly one binary of eight files), several
threads install it before the compile looks into it, and it also serves kernels that no entry holds as an
autotuner. PyTorch itself makes an entry without copies where bundling finds nothing; if Triton's folder is
lost, the kernels are compiled again.

Only `warm` uses this module: the FX entries of a service stay as PyTorch makes them.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cachesvc_client.hooks import imports
from cachesvc_client.hooks.table import Hook

_COLLECT = Hook(
    "torch._inductor.triton_bundler",
    "TritonBundler.collect",
    "leaves copies of kernels out of FX entries",
    "kernels travel twice",
    role="gpu",
)
_EMIT = Hook(
    "torch._inductor.triton_bundler",
    "TritonBundler.read_and_emit",
    "records the files that PyTorch writes out of FX entries",
    "files of FX entries may count as new",
    role="gpu",
)
_RELOAD = Hook(
    "torch._inductor.runtime.triton_heuristics",
    "StaticTritonCompileResult.reload_cubin_path",
    "records the binaries that have to be there",
    "binaries that are not read may be left out",
    role="gpu",
)
HOOKS = (_COLLECT, _EMIT, _RELOAD)


class KernelFiles:
    """Holds the files of kernels that this process's hits of FX entries wrote or needed, as absolute paths.

    ``emitted``: files that PyTorch wrote out of an entry; the entry held them, so they are not new.
    ``required``: binaries that had to exist, whether or not they were read: those of candidates that lost
    a choice are not read.
    """

    def __init__(self) -> None:
        self.emitted: set[Path] = set()
        self.required: set[Path] = set()


def leave_out_copies() -> None:
    """Install the hook that keeps copies of kernels out of the FX entries that this process saves.

    Triton's folder has to travel with such entries. The hook waits for the import of Inductor.
    """
    _COLLECT.install(_collect)


def record_files(files: KernelFiles) -> None:
    """Install the hooks that add to ``files``; they wait for the import of Inductor."""
    _EMIT.install(functools.partial(_emit, files))
    _RELOAD.install(functools.partial(_reload, files))


def _collect(call: imports.Call) -> Any:
    """Return the bundle of a new FX entry without kernels, with its autotuners, which nothing else holds.

    Until torch 2.7 a bundle is a list of kernels alone; such a bundle stays as it is.
    """
    bundle, metadata = call()
    if isinstance(bundle, list):
        return bundle, metadata
    return dataclasses.replace(bundle, kernel_artifacts=[]), metadata


def _emit(files: KernelFiles, call: imports.Call) -> Any:
    """Record the files that PyTorch writes out of an FX entry that this process hits."""
    bundle = call.argument("bundle")
    absent = [folder for folder in _folders(bundle) if not any(_files_in(folder))]
    answer = call()
    for folder in absent:
        files.emitted.update(_files_in(folder))
    return answer


def _reload(files: KernelFiles, call: imports.Call) -> Any:
    """Record the binary that an autotuner's candidate looks for."""
    answer = call()
    if path := call.args[0].kernel.cubin_path:
        files.required.add(Path(path))
    return answer


def _folders(bundle: Any) -> list[Path]:
    """Return the folders of the kernels that ``bundle`` holds."""
    from torch._inductor.runtime.runtime_utils import triton_cache_dir

    return [Path(triton_cache_dir(kernel.device), kernel.kernel_hash) for kernel in bundle.kernel_artifacts]


def _files_in(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (Path(entry.path) for entry in os.scandir(folder) if entry.is_file())
