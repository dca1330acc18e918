"""Which GPU libraries a recorded graph starts. That it saves time is seen on a GPU (docs/gpu.md)."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cachesvc_client.kinds.frames import gpu_libraries
from cachesvc_client.kinds.frames.gpu_libraries import LibraryCall, library_calls, started

CODE = """
    with torch.cuda._DeviceGuard(1):
        torch.cuda.set_device(1)
        buf0 = empty_strided_cuda((128, 2048), (2048, 1), torch.bfloat16)
        buf1 = empty_strided_cuda((128, 64), (64, 1), torch.int64)
        extern_kernels.mm(reinterpret_tensor(arg0_1, (128, 64), (64, 1), 0), arg1_1, out=buf0)
        buf2 = torch.ops.aten._scaled_dot_product_cudnn_attention.default(buf0, buf0, buf0, None, False)
"""
CALLS = (LibraryCall("mm", "bfloat16", 0),)


def test_calls_are_read_in_generated_code() -> None:
    assert library_calls(CODE) == (LibraryCall("mm", "bfloat16", 1), LibraryCall("cudnn", "bfloat16", 1))
    assert library_calls(CODE.replace("extern_kernels.mm(", "extern_kernels.addmm("))[0].function == "mm"
    convolution = CODE.replace("extern_kernels.mm(", "extern_kernels.convolution(").replace("_cudnn_", "_")
    assert library_calls(convolution) == (LibraryCall("cudnn", "bfloat16", 1),)
    assert library_calls(CODE.replace("cuda", "cpu")) == ()
    assert library_calls("") == ()


def test_nothing_is_started_where_no_gpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(gpu_libraries, "_start", lambda *given: begun.append(given))
    with started(CALLS):
        pass
    assert not begun


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have torch say that the process uses a GPU."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)


@pytest.mark.usefixtures("gpu")
def test_the_block_ends_when_the_libraries_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, events = threading.Event(), []

    def start(calls: Any, _stream: Any) -> None:
        assert go_on.wait(30)
        events.append(calls)

    monkeypatch.setattr(gpu_libraries, "_start", start)
    with pytest.raises(ZeroDivisionError), started((*CALLS, LibraryCall("mm", "float16", 1))):
        go_on.set()
        raise ZeroDivisionError
    assert sorted(map(len, events)) == [1, 1], "one thread for each GPU"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", ["are_deterministic_algorithms_enabled", "cuda.is_current_stream_capturing"])
def test_nothing_is_started_in_a_capture_or_for_deterministic_algorithms(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(gpu_libraries, "_start", lambda *given: begun.append(given))
    with started(CALLS):
        pass
    assert len(begun) == 1, "else it starts"
    monkeypatch.setattr(f"torch.{name}", lambda: True)
    with started(CALLS):
        pass
    assert len(begun) == 1


@pytest.mark.usefixtures("gpu")
def test_a_library_that_does_not_start_is_left_to_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    with started(CALLS):  # the stream is none
        pass
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: 1 / 0)
    with started(CALLS):
        pass


def test_each_function_is_one_that_torch_has() -> None:
    """On a CPU: what the functions make on a GPU is made there, and cuDNN's is only there to be called."""
    import torch

    made: list[tuple[int, ...]] = []

    def empty(*size: int, dtype: Any, device: str) -> Any:
        assert device == "cuda"
        made.append(size)
        return torch.empty(*size, dtype=dtype)

    called = SimpleNamespace(
        empty=empty, mm=torch.mm, backends=torch.backends, cudnn_convolution=lambda *given: made.append(given)
    )
    for function in gpu_libraries._FUNCTIONS.values():
        function(called, torch.bfloat16)
    assert made[0] == (16, 16) and len(made[-1]) == 9
    assert callable(torch.cudnn_convolution)
