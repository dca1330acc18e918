"""Have torch and Triton answer from the description of a GPU that is not there.

`install` replaces names of torch and Triton in this process, for good: a builder's process does one phase
and ends. Tensors of the absent device are fake tensors (``torch._subclasses.FakeTensorMode``), which have a
shape and no values. Dynamo, AOTAutograd and Inductor trace and compile with them as they do with others, and
Triton's ``ptxas`` compiles for any architecture. What runs or allocates is replaced; what must time or ask
the driver is refused with `GpuNeeded`, or decided without timing and noted (`decisions`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from cachesvc_client.graphs.released import known
from cachesvc_client.wire.errors import Unsupported

from . import choices, kernels
from .decisions import Decisions, Replacement, always
from .description import DeviceDescription

VERSIONS = ("2.11", "3.6")
"""Releases of torch and Triton whose names are replaced here."""


def install(device: DeviceDescription) -> StandIn:
    """Put the stand-in in place and return it. Imports torch and Triton.

    Raises ``Unsupported`` on another release than `VERSIONS`, where a name is not there, on a torch without
    CUDA, and where there is a GPU.
    """
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a worker would ask the driver; no key holds it
    _check_versions()
    known.OURS += (os.path.join(os.path.dirname(__file__), ""),)
    stand_in = StandIn(device)
    for module, path, replacement in stand_in.replacements():
        _replace(module, path, replacement)
    stand_in.name_driver()
    stand_in.order_attention()
    return stand_in


def _check_versions() -> None:
    import torch

    try:
        import triton
    except ImportError:
        raise Unsupported("without a GPU: triton is not installed") from None
    releases = tuple(".".join(version.split(".")[:2]) for version in (torch.__version__, triton.__version__))
    if releases != VERSIONS:
        raise Unsupported(
            f"without a GPU: not tried with torch {torch.__version__} and triton {triton.__version__}",
            hint="use torch {} with triton {}, or warm on the GPU".format(*VERSIONS),
        )
    if torch.version.cuda is None:
        raise Unsupported(
            f"without a GPU: torch {torch.__version__} is not built for CUDA", hint="install the CUDA wheel"
        )
    if torch.cuda.is_available():
        raise Unsupported("without a GPU: this machine has one", hint="warm without --for-gpu")


def _replace(module: str, path: str, replacement: Any) -> None:
    """Raise ``Unsupported`` where the name is not there, so that nothing is compiled by halves."""
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    if owner is None or not hasattr(owner, name):
        raise Unsupported(f"without a GPU: this torch has no {module}.{path}")
    if isinstance(replacement, types.FunctionType):
        vars(replacement)["__wrapped__"] = getattr(owner, name)  # keys have that: the service runs it
    setattr(owner, name, replacement)


class StandIn:
    """Answers for the device, and places tensors on it.

    ``decisions``: what was decided without timing, and what was refused.
    """

    def __init__(self, device: DeviceDescription) -> None:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.decisions = Decisions(device)
        self.torch_device = torch.device("cuda", 0)
        # Otherwise PyTorch's C++ asks for the streams of a device that the answers below say is there.
        FakeTensorMode.avoid_device_init = property(always(True))
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def replacements(self) -> Iterator[Replacement]:
        """Yield what is put in the place of torch's names."""
        device = self.decisions.device
        facts = {"gpu": device.name, "compute_capability": device.capability}
        yield "cachesvc_client.environment.gpu", "first_gpu", always(facts)
        yield "cachesvc_client.graphs.attention", "settle_attention_order", always(None)
        yield from self._answers()
        yield from self._tensors()
        yield self._graph_inputs()
        yield from kernels.replacements(self.decisions)
        yield from choices.replacements(self.decisions)

    def _answers(self) -> Iterator[Replacement]:
        """Yield what the device says of itself, where PyTorch asks its C++ part."""
        import torch

        device = self.decisions.device
        major, minor = device.compute_capability
        numbers = {"name": device.name, **device.properties, "major": major, "minor": minor}
        answers = {
            "is_initialized": True,  # by this the client says that code is bound to the GPU, and not to a CPU
            "_lazy_init": None,
            "_get_device_properties": SimpleNamespace(**numbers),
            "_device_count_nvml": 1,
            "_exchange_device": 0,
            "_maybe_exchange_device": 0,
            "get_rng_state": torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": None,
        }
        below = {
            "_cuda_getDeviceCount": 1,
            "_cuda_getDevice": 0,
            "_cuda_setDevice": None,
            "_cuda_exchangeDevice": 0,
            "_cuda_maybeExchangeDevice": 0,
            "_cuda_synchronize": None,
            "_cuda_getCurrentRawStream": 0,
        }
        torch.cuda._get_device_properties = None  # there once a driver has started
        for name, answer in answers.items():
            yield "torch.cuda", name, always(answer)
        yield (
            "torch.cuda.random",
            "_lazy_call",
            always(None),
        )  # seeds the device's generators, which are not there
        for name, number in below.items():
            yield "torch._C", name, always(number)
        for name in ("exchange_device", "maybe_exchange_device", "get_raw_stream"):
            yield "torch._dynamo.device_interface", f"CudaInterface.{name}", staticmethod(always(0))

    def _tensors(self) -> Iterator[Replacement]:
        """Yield what makes and views tensors in generated code, which PyTorch does in C++."""
        import torch

        def empty(size: Any, stride: Any, dtype: Any) -> Any:
            return torch.empty_strided(size, stride, dtype=dtype, device=self.torch_device)

        def view(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
            return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

        yield "torch._C", "_dynamo.guards._empty_strided_cuda", empty
        yield "torch._C", "_dynamo.guards._reinterpret_tensor", view
        yield "torch._subclasses.fake_tensor", "init_gpu_context", always(None)

    def _graph_inputs(self) -> Replacement:
        """Return what has Dynamo note the classes that inputs have on the device: AOTAutograd's key holds the
        text of the graph, and there an input has its class for an annotation."""
        import torch
        from torch._dynamo.output_graph import SubgraphTracer
        from torch._subclasses.fake_tensor import FakeTensor

        create: Any = SubgraphTracer.create_graph_input

        def create_graph_input(self: Any, name: str, kind: Any, value: Any, *more: Any, **other: Any) -> Any:
            if kind is FakeTensor:
                kind = torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor
            return create(self, name, kind, value, *more, **other)

        return "torch._dynamo.output_graph", "SubgraphTracer.create_graph_input", create_graph_input

    def name_driver(self) -> None:
        """Make the device Triton's."""
        from triton.backends.compiler import GPUTarget
        from triton.runtime import driver

        device = self.decisions.device
        major, minor = device.compute_capability
        target = GPUTarget("cuda", major * 10 + minor, device.properties["warp_size"])
        driver.set_active(
            SimpleNamespace(
                get_current_target=always(target),
                get_current_device=always(0),
                get_active_torch_device=always(self.torch_device),
                utils=SimpleNamespace(get_device_properties=always(dict(device.triton))),
            )
        )

    def order_attention(self) -> None:
        """Have PyTorch try its attention kernels in the order that it has on the device: keys hold it."""
        import torch

        torch._C._set_sdp_priority_order(self.decisions.device.attention)

    def place(self, module: Any) -> None:
        """Replace the parameters and buffers of a module by fake ones on the absent device. What is shared
        stays shared."""
        import torch

        moved: dict[int, Any] = {}
        for part in module.modules():
            for name, item in part._parameters.items():
                if item is not None and id(item) not in moved:
                    moved[id(item)] = torch.nn.Parameter(self.move(item.detach()), item.requires_grad)
                part._parameters[name] = moved.get(id(item))
            for name, item in part._buffers.items():
                if item is not None and id(item) not in moved:
                    moved[id(item)] = self.move(item)
                part._buffers[name] = moved.get(id(item))

    def move(self, tensor: Any) -> Any:
        """Return the fake tensor of the absent device for one on the CPU."""
        with self.mode:
            return self.mode.from_tensor(tensor, static_shapes=True).to(self.torch_device)

    @contextlib.contextmanager
    def calls(self) -> Iterator[None]:
        """Return a context in which a model may be called with fake tensors."""
        with self.mode:
            yield
