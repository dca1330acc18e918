"""Starts the GPU libraries that recorded graphs call while the guards of a frame are made.

The first matrix product of a process starts cuBLAS, and the first convolution or attention of cuDNN's starts
cuDNN: a tenth of a second each [measured, H100, torch 2.11; after a product of 16 by 16 the first real one
takes 4 ms]. The libraries start outside of Python, so a thread can do it while the main thread makes guards,
which takes longer. PyTorch keeps the handle of a thread that ended for the next one, with its workspace, so
the process uses no more memory [measured].
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

_log = logging.getLogger("cachesvc")

_PRODUCT = re.compile(r"\bextern_kernels\.(?:mm|addmm|bmm|baddbmm)\(")
"""Matches a matrix product in generated code."""
_CUDNN = re.compile(r"\bextern_kernels\.convolution\(|\b_scaled_dot_product_cudnn_attention\b")
"""Matches a function of cuDNN's in generated code."""
_DTYPE = re.compile(r"\bempty_strided_cuda\(.*\btorch\.(bfloat16|float16|float32)\)")
"""Matches the type of a tensor that generated code makes on a GPU."""
_DEVICE = re.compile(r"\btorch\.cuda\._DeviceGuard\((\d+)\)")
"""Matches the number of the GPU on which generated code runs."""


class LibraryCall(NamedTuple):
    """Names a function of a library that a graph calls: *mm* or *cudnn*, a type of ``torch``, and a GPU."""

    function: str
    dtype: str
    device: int


def library_calls(source: str) -> tuple[LibraryCall, ...]:
    """Return what generated code calls, each once."""
    functions = [name for name, call in (("mm", _PRODUCT), ("cudnn", _CUDNN)) if call.search(source)]
    dtypes, devices = sorted({*_DTYPE.findall(source)}), sorted({*map(int, _DEVICE.findall(source))})
    return tuple(
        LibraryCall(function, dtype, device)
        for device in devices
        for function in functions
        for dtype in dtypes
    )


@contextlib.contextmanager
def started(calls: Sequence[LibraryCall]) -> Iterator[None]:
    """Start the libraries of these calls beside the block, which ends when they are started.

    Does nothing where the process has not used a GPU yet, where it captures a CUDA graph, and where it asked
    for deterministic algorithms, of which PyTorch says at a call what it lacks. Never raises of itself.
    """
    threads = _threads(calls) if calls else []
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def _threads(calls: Sequence[LibraryCall]) -> list[threading.Thread]:
    """Start one thread for each GPU; return them."""
    import torch

    threads: list[threading.Thread] = []
    try:
        if (
            not torch.cuda.is_initialized()
            or torch.are_deterministic_algorithms_enabled()
            or torch.cuda.is_current_stream_capturing()
        ):
            return []
        for device in sorted({call.device for call in calls}):
            here = [call for call in calls if call.device == device]
            work = (here, torch.cuda.current_stream(device))
            thread = threading.Thread(target=_start, args=work, name="cachesvc-libraries", daemon=True)
            thread.start()
            threads.append(thread)
    except Exception:  # noqa: BLE001 - a driver, or a GPU that is not there
        _log.debug("no library of the GPU was started", exc_info=True)
    return threads


def _start(calls: Sequence[LibraryCall], stream: Any) -> None:
    """Call each function for small tensors whose values nobody reads, on the stream that the graphs will use:
    a library's workspace belongs to a stream."""
    import torch

    try:
        with torch.cuda.stream(stream):
            stream.query()  # binds this thread to the device
            for call in calls:
                _FUNCTIONS[call.function](torch, getattr(torch, call.dtype))
    except Exception:  # noqa: BLE001 - the graph makes the same call, and says what is wrong
        _log.debug("a library of the GPU was not started", exc_info=True)


def _multiply(torch: Any, dtype: Any) -> None:
    matrix = torch.empty(16, 16, dtype=dtype, device="cuda")
    torch.mm(matrix, matrix)


def _convolve(torch: Any, dtype: Any) -> None:
    """Call cuDNN without its benchmarks, whatever ``torch.backends.cudnn.benchmark`` says."""
    if not torch.backends.cudnn.enabled:
        return
    image = torch.empty(1, 8, 8, 8, dtype=dtype, device="cuda")
    weights = torch.empty(8, 8, 3, 3, dtype=dtype, device="cuda")
    torch.cudnn_convolution(image, weights, [1, 1], [1, 1], [1, 1], 1, False, False, True)


_FUNCTIONS: dict[str, Callable[[Any, Any], None]] = {"mm": _multiply, "cudnn": _convolve}
