"""Have torch and Triton answer from the description of a GPU that is not there.

`install` replaces names of torch 2.11 and Triton 3.6 in this process, for good: a builder's process does one
phase and ends. Tensors of the absent device are fake tensors (``torch._subclasses.FakeTensorMode``), which have
a shape and no values. Dynamo, AOTAutograd and Inductor trace and compile with them as they do with others, and
Triton's ``ptxas`` compiles for any architecture. What runs, allocates or times is replaced by nothing, or
refused with `GpuNeeded`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cachesvc_client.wire.errors import Unsupported

from .cubin import kernel_use
from .description import DeviceDescription

VERSIONS = ("2.11", "3.6")
"""Releases of torch and Triton whose names this module replaces."""


class GpuNeeded(Unsupported):
    """Reports a step of a compile that needs the GPU itself."""


def install(device: DeviceDescription) -> StandIn:
    """Put the stand-in in place and return it. Imports torch and Triton.

    Raises ``Unsupported`` on another release than `VERSIONS`, where a name is not there, on a torch without
    CUDA, and where there is a GPU.
    """
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a worker would ask the driver; no key holds it
    import torch

    try:
        import triton
    except ImportError:
        raise Unsupported("without a GPU: triton is not installed") from None
    releases = tuple(".".join(version.split(".")[:2]) for version in (torch.__version__, triton.__version__))
    if releases != VERSIONS:
        raise Unsupported(
            f"without a GPU: torch {torch.__version__} with triton {triton.__version__} was not tried",
            hint="use torch {} with triton {}, or warm on the GPU".format(*VERSIONS),
        )
    if torch.version.cuda is None:
        raise Unsupported(
            f"without a GPU: torch {torch.__version__} is not built for CUDA", hint="install the CUDA wheel"
        )
    if torch.cuda.is_available():
        raise Unsupported("without a GPU: this machine has one", hint="warm without the description")
    stand_in = StandIn(device)
    for module, path, replacement in stand_in.rows():
        _replace(module, path, replacement)
    stand_in.name_driver()
    return stand_in


def _replace(module: str, path: str, replacement: Any) -> None:
    """Raise ``Unsupported`` where the name is not there, so that nothing is compiled by halves."""
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    if owner is None or not hasattr(owner, name):
        raise Unsupported(f"without a GPU: this torch has no {module}.{path}")
    setattr(owner, name, replacement)


class StandIn:
    """Holds the device's answers, the mode of fake tensors, and what was decided without timing."""

    def __init__(self, device: DeviceDescription) -> None:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.device = device
        self.torch_device = torch.device("cuda", 0)
        self.properties = SimpleNamespace(
            name=device.name,
            major=device.compute_capability[0],
            minor=device.compute_capability[1],
            **{name: value for name, value in device.properties.items() if name not in ("major", "minor")},
        )
        self.untimed: set[str] = set()
        """Names of kernels of which PyTorch would have timed several candidates."""
        FakeTensorMode.avoid_device_init = property(lambda self: True)  # type: ignore[method-assign,assignment]
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def rows(self) -> Iterator[tuple[str, str, Any]]:
        """Yield (module, name, replacement)."""
        yield from self._answers()
        yield from self._tensors()
        yield from self._kernels()
        yield from self._choices()
        yield from self._refusals()

    def _answers(self) -> Iterator[tuple[str, str, Any]]:
        """Yield what the device says of itself."""
        import torch

        state = torch.zeros(16, dtype=torch.uint8)
        answers = {
            "_lazy_init": None,
            "_get_device_properties": self.properties,
            "_device_count_nvml": 1,
            "_exchange_device": 0,
            "_maybe_exchange_device": 0,
            "get_rng_state": state,
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
        torch.cuda._get_device_properties = None  # the name is there once the driver has started
        for name, answer in answers.items():
            yield "torch.cuda", name, _always(answer)
        for name, answer in below.items():
            yield "torch._C", name, _always(answer)
        for name, answer in {"exchange_device": 0, "maybe_exchange_device": 0, "get_raw_stream": 0}.items():
            yield "torch._dynamo.device_interface", f"CudaInterface.{name}", staticmethod(_always(answer))

    def _tensors(self) -> Iterator[tuple[str, str, Any]]:
        """Yield what makes and views tensors in generated code, which PyTorch does in C++."""
        import torch

        def empty(size: Any, stride: Any, dtype: Any) -> Any:
            return torch.empty_strided(size, stride, dtype=dtype, device=self.torch_device)

        def reinterpret(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
            return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

        yield "torch._C", "_dynamo.guards._empty_strided_cuda", empty
        yield "torch._C", "_dynamo.guards._reinterpret_tensor", reinterpret
        yield "torch._subclasses.fake_tensor", "init_gpu_context", _always(None)

    def _kernels(self) -> Iterator[tuple[str, str, Any]]:
        """Yield what loads and runs kernels."""
        heuristics = "torch._inductor.runtime.triton_heuristics"
        import torch._inductor.runtime.triton_heuristics as module

        precompile = module.CachingAutotuner._precompile_worker

        def compile_first(autotuner: Any) -> None:
            self._take_first(autotuner)
            precompile(autotuner)

        yield heuristics, "CachingAutotuner._precompile_worker", compile_first
        yield heuristics, "CachingAutotuner._make_launchers", self._describe_kernels
        yield heuristics, "CachingAutotuner.run", self._run
        yield "torch._inductor.runtime.triton_helpers", "set_driver_to_gpu", _always(None)
        yield "torch._inductor.cudagraph_trees", "cudagraphify", _no_graph

    def _choices(self) -> Iterator[tuple[str, str, Any]]:
        """Yield what PyTorch works out on the device while it compiles."""
        import torch
        from torch._inductor.fx_passes import joint_graph

        folder = joint_graph.UniformValueConstantFolder
        for name in ("__init__", "_deduce_value"):
            place = f"UniformValueConstantFolder.{name}"
            yield "torch._inductor.fx_passes.joint_graph", place, _on_cpu(getattr(folder, name))
        yield "torch._inductor.fx_passes.pad_mm", "get_cached_should_pad", self._pad_nothing
        attention = torch.ops.aten.scaled_dot_product_attention.default
        attention.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(self._attend)

    def _pad_nothing(self, key: str) -> bool:
        """Run in the place of the look into earlier timings, which comes before PyTorch times a product."""
        self.untimed.add("whether to pad a matrix product")
        return False

    def _attend(self, *args: Any, **kwargs: Any) -> Any:
        """Run in the place of PyTorch's attention, which asks the driver which of its kernels is usable."""
        import torch

        if (
            torch._C._get_flash_sdp_enabled()
            or torch._C._get_cudnn_sdp_enabled()
            or torch._C._get_mem_efficient_sdp_enabled()
        ):
            raise GpuNeeded(
                "without a GPU: scaled_dot_product_attention asks the GPU which of its kernels it can use (call it "
                "under sdpa_kernel(SDPBackend.MATH), or use attention in plain operations: transformers has "
                'attn_implementation="eager")'
            )
        return torch.ops.aten.scaled_dot_product_attention.default.decompose(*args, **kwargs)

    def _refusals(self) -> Iterator[tuple[str, str, Any]]:
        """Yield what cannot be done without the device."""
        yield (
            "torch._inductor.select_algorithm",
            "AlgorithmSelectorCache.benchmark",
            _refuse("max-autotune times its candidates"),
        )
        yield (
            "torch._inductor.runtime.benchmarking",
            "InductorBenchmarker.benchmark_gpu",
            _refuse("tuning times kernels"),
        )

    def name_driver(self) -> None:
        """Make the device Triton's."""
        from triton.backends.compiler import GPUTarget
        from triton.runtime import driver

        major, minor = self.device.compute_capability
        target = GPUTarget("cuda", major * 10 + minor, self.device.properties["warp_size"])
        driver.set_active(
            SimpleNamespace(
                get_current_target=_always(target),
                get_current_device=_always(0),
                get_active_torch_device=_always(self.torch_device),
                utils=SimpleNamespace(get_device_properties=_always(dict(self.device.triton))),
            )
        )

    def place(self, module: Any) -> None:
        """Replace the parameters and buffers of a module by fake ones on the absent device."""
        import torch

        moved: dict[int, Any] = {}
        for part in module.modules():
            for name, item in part._parameters.items():
                if item is not None:
                    if id(item) not in moved:
                        moved[id(item)] = torch.nn.Parameter(self.move(item.detach()), item.requires_grad)
                    part._parameters[name] = moved[id(item)]
            for name, item in part._buffers.items():
                if item is not None:
                    part._buffers[name] = moved.setdefault(id(item), self.move(item))

    def move(self, tensor: Any) -> Any:
        """Return the fake tensor of the absent device for one on the CPU."""
        with self.mode:
            return self.mode.from_tensor(tensor, static_shapes=True).to(self.torch_device)

    @contextlib.contextmanager
    def calls(self) -> Iterator[None]:
        """Return a context in which a model may be called with fake tensors."""
        with self.mode:
            yield

    def _take_first(self, autotuner: Any) -> None:
        """Leave the first candidate, as PyTorch does in deterministic mode: nothing can be timed."""
        configs = autotuner.configs
        if autotuner.compile_results or not configs:
            return
        if autotuner.inductor_meta.get("coordinate_descent_tuning"):
            raise GpuNeeded("without a GPU: coordinate descent times each step of a kernel")
        if len(configs) > 1:
            self.untimed.add(_kernel_name(autotuner))
            autotuner.configs = configs[:1]

    def _describe_kernels(self, autotuner: Any) -> None:
        """Run in the place of the step that loads kernels: say what the driver would say of them."""
        for result in autotuner.compile_results:
            kernel = result.kernel
            if not hasattr(kernel, "cubin_path"):
                raise GpuNeeded(
                    f"without a GPU: the kernel {_kernel_name(autotuner)} needs a library of Triton's to be "
                    "launched (a kernel of the program's own, or one with a long name)"
                )
            if kernel.cubin_path is None:
                result.reload_cubin_path()
            use = kernel_use(Path(kernel.cubin_path), kernel.name)
            kernel.n_regs, kernel.n_spills = use.registers, use.spills
            if kernel.shared > self.device.properties["shared_memory_per_block_optin"]:
                raise GpuNeeded(
                    f"without a GPU: the first candidate of {_kernel_name(autotuner)} needs more shared memory "
                    "than the GPU has, and which one PyTorch would take is not known"
                )

    def _run(self, autotuner: Any, *args: Any, **kwargs: Any) -> None:
        """Run in the place of a kernel."""


def _kernel_name(autotuner: Any) -> str:
    return str(autotuner.inductor_meta.get("kernel_name", "unknown"))[:150]


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


_EXACT = frozenset(
    {
        *("full", "ones", "zeros", "empty", "scalar_tensor", "full_like", "add", "sub", "mul", "div", "neg"),
        *(
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "where",
            "_to_copy",
            "convert_element_type",
            "device_put",
            "view",
        ),
        *("logical_not", "logical_and", "logical_or", "bitwise_not", "bitwise_and", "bitwise_or", "flatten"),
        *(
            "select",
            "slice",
            "squeeze",
            "unsqueeze",
            "expand",
            "broadcast_in_dim",
            "alias",
            "clone",
            "detach",
        ),
        *("_local_scalar_dense", "reshape", "as_strided", "permute", "t", "lift_fresh_copy", "isfinite"),
    }
)
"""Operations that have the same result on a CPU as on a GPU, to the bit."""


def _on_cpu(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that works out constants of one element, with tensors on the CPU.

    Raises `GpuNeeded` for an operation whose last bit may be another there.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    class OnCpu(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if name not in _EXACT:
                raise GpuNeeded(
                    f"without a GPU: the constant of {name} may differ from the GPU's in its last bit"
                )
            return func(*tree_map(_cpu, args), **tree_map(_cpu, kwargs or {}))

    def _cpu(value: Any) -> Any:
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value

    def run(*args: Any, **kwargs: Any) -> Any:
        with OnCpu():
            return method(*args, **kwargs)

    return run


def _refuse(why: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise GpuNeeded(f"without a GPU: {why}")

    return refuse


def _no_graph(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for ``cudagraphify``: a CUDA graph is recorded by the process that runs it."""
    return model
