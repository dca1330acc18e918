"""Spares a start the imports, and the hash of PyTorch's sources, that only a compile needs.

For one small function each, ``torch.compile`` and PyTorch's loader of compiled graphs import Inductor's
lowerings and AOTAutograd's compiler [measured, 2.13: half a second of CPU of a start of 0.8 s whose frames
were all given]. Where frames may be given, these functions run as copies whose own import statements get a
stand-in for a module that nobody has imported. A process that has to compile after all imports the modules
then.

After ``torch.compile`` a program may read a submodule, such as ``torch._inductor.debug``, as an attribute of
its package, because PyTorch has imported it. So the packages import a submodule when it is asked for.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import inspect
import io
import pickle
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from ...hooks import imports
from .from_source import Source, import_with, importing_from
from .late_package import put_late_package

_COMPILER = "torch._inductor.compile_fx"
_MINIFIER = "torch._dynamo.repro.after_dynamo"
_LOWERING = "torch._inductor.graph"
_DECOMPOSITIONS = "torch._inductor.decomposition"
_DEBUG = "torch._inductor.debug"
_TREES = "torch._inductor.cudagraph_trees"
_PACKAGES = ("torch._inductor", "torch._dynamo", "torch._functorch")
_CODE_CACHE = "torch._inductor.codecache"
_ARCHIVES = "torch.export.pt2_archive"
_loading = threading.local()
"""``sources``: the builder's hash of PyTorch's sources, while this thread loads a recorded graph."""


def with_stand_ins(function: Any, stand_ins: Mapping[str, Any], **scope: Any) -> Any:
    """Return a copy of a function whose own import statements take names from stand-ins, as `importing_from`
    has them.

    ``scope``: globals that the copy has in the place of its module's.
    """
    plain = inspect.unwrap(function)

    names = {"__builtins__": {**vars(builtins), "__import__": importing_from(stand_ins)}}
    copy = types.FunctionType(
        plain.__code__,
        {**plain.__globals__, **scope, **names},
        plain.__name__,
        plain.__defaults__,
        plain.__closure__,
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    return copy


def code_cache() -> Any:
    """Return the module ``torch._inductor.codecache``.

    If this call imports it, then without PyTorch's archives of exported programs, half of the import
    [measured, 2.11]: the module needs two small ones of theirs."""
    if _CODE_CACHE not in sys.modules and _ARCHIVES not in sys.modules:
        with contextlib.suppress(ImportError):  # a torch without the package
            put_late_package(_ARCHIVES)
    return importlib.import_module(_CODE_CACHE)


def compiler_config(call: imports.Call) -> Any:
    """Return the settings of a compile, as ``get_compiler_config`` of Inductor's backend does; without
    Inductor's compiler."""
    from torch._inductor import config

    options = call.args[0].config
    if _COMPILER in sys.modules or (options and options.keys() - config.get_config_copy()):
        return call()
    _complete_packages()
    with config.patch(options):
        return config.get_config_copy()


def compiler_function(call: imports.Call) -> Any:
    """Return the backend in the wrapper that `torch._dynamo.eval_frame.get_compiler_fn` puts around it;
    without the minifier."""
    if _MINIFIER in sys.modules:
        return call()
    _complete_packages()
    stand_in = SimpleNamespace(wrap_backend_debug=_DeferredMinifier)
    return with_stand_ins(call.original, {_MINIFIER: stand_in})(*call.args, **call.kwargs)


def load_graph(call: imports.Call) -> Any:
    """Load a compiled graph, as ``FxGraphCache.cache_hit_post_compile`` does; without Inductor's lowerings,
    which it asks for a function of PyTorch's own tests."""
    _complete_packages()
    stand_in = SimpleNamespace(GraphLowering=SimpleNamespace(save_output_code=None))
    return with_stand_ins(call.original, {_LOWERING: stand_in})(*call.args, **call.kwargs)


def record_cuda_graphs(call: imports.Call) -> Any:
    """Have a loaded graph recorded as CUDA graphs at its first call, as ``cudagraph_post_compile`` and the
    same for parts of a graph do; without Inductor's compiler, whose module has four small functions of
    theirs."""
    if _COMPILER in sys.modules:
        return call()
    stand_in = SimpleNamespace(cudagraphify=_import_cuda_graphs().cudagraphify)
    return with_stand_ins(call.original, {_COMPILER: stand_in})(*call.args, **call.kwargs)


@functools.cache
def _import_cuda_graphs() -> Source:
    """Import PyTorch's CUDA graphs without Inductor's compiler; return what stands for the compiler. Raises
    ``LookupError`` where they need anything but its functions. A graph in parts asks for each part."""
    compiler = Source(_COMPILER)
    import_with(_TREES, {_COMPILER: compiler})
    return compiler


@contextlib.contextmanager
def sources_of_builder(sources: bytes) -> Iterator[None]:
    """Have this thread take the builder's hash of PyTorch's sources for its own while it loads a graph.

    A graph's bundle holds its kernels under names with that hash, the record of a tuned kernel lies under
    such a name, and the graph's code looks for both by the source of the kernel. So the names need to agree
    with each other alone, and the hash of this machine's sources takes 0.15 s. Whoever compiles uses that.
    """
    _loading.sources = sources
    try:
        yield
    finally:
        _loading.sources = b""


def source_hash(call: imports.Call) -> Any:
    """Return the hash of PyTorch's sources, as ``torch_key`` does; the builder's while this thread loads a
    recorded graph."""
    return getattr(_loading, "sources", b"") or call()


def kernel_name(call: imports.Call) -> Any:
    """Return the name of a Triton kernel in the memory of this process, as ``CompiledTritonKernels.key``
    does; its module may have taken ``torch_key`` before this client was attached."""
    if not (sources := getattr(_loading, "sources", b"")):
        return call()
    from torch._inductor.codecache import code_hash

    return code_hash(call.argument("kernel_src"), extra=sources)


def read_graph(data: bytes) -> Any:
    """Return a recorded graph out of a verified file; without Inductor's decompositions, of which it holds
    the function that lists them.

    PyTorch copies a graph before it prepares it, so that the program may serialise it again. That copy is
    read from the same bytes here, in a quarter of the time."""
    graph = _unpickled(data)
    with contextlib.suppress(AttributeError):  # a torch whose graph is another object
        graph.content.__deepcopy__ = lambda _memo: _unpickled(data).content
    return graph


def _unpickled(data: bytes) -> Any:
    return _GraphUnpickler(io.BytesIO(data)).load()


class _GraphUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == _DECOMPOSITIONS and module not in sys.modules and name == "select_decomp_table":
            return _decompositions
        return super().find_class(module, name)


def _decompositions() -> Any:
    return importlib.import_module(_DECOMPOSITIONS).select_decomp_table()


class _DeferredMinifier:
    """Stands for Dynamo's ``WrapBackendDebug`` until a graph is compiled, with the same attributes."""

    def __init__(self, backend: Any, name: str | None) -> None:
        functools.wraps(backend)(self)
        self._torchdynamo_orig_backend = backend
        self._compiler_name = name
        for attribute in ("__name__", "compiler_name"):
            if hasattr(backend, attribute):
                self.__name__ = getattr(backend, attribute)
        if hasattr(backend, "get_compiler_config"):
            self.get_compiler_config = backend.get_compiler_config

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wrap = importlib.import_module(_MINIFIER).wrap_backend_debug
        return wrap(self._torchdynamo_orig_backend, self._compiler_name)(*args, **kwargs)


class _DeferredDebug(ModuleType):
    """Stands for ``torch._inductor.debug``, which each call of a compiled graph asks whether graphs are
    recorded. Everything else is the module's, which is then imported."""

    @property
    def RECORD_GRAPH_EXECUTION(self) -> bool:
        """Return whether executions are recorded: never before the module is imported."""
        return bool(getattr(sys.modules.get(_DEBUG), "RECORD_GRAPH_EXECUTION", False))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(_DEBUG), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(importlib.import_module(_DEBUG), name, value)


def _complete_packages() -> None:
    """Have PyTorch's packages import a submodule when a program asks for it as an attribute."""
    for name in _PACKAGES:
        package = sys.modules.get(name)
        if package is None or isinstance(package.__dict__.get("__getattr__"), _LateAttribute):
            continue
        package.__getattr__ = _LateAttribute(package)  # type: ignore[method-assign]
    inductor = sys.modules.get("torch._inductor")
    if inductor is not None and _DEBUG not in sys.modules and "debug" not in vars(inductor):
        debug = _DeferredDebug(_DEBUG)
        inductor.debug = debug  # type: ignore[attr-defined]


class _LateAttribute:
    """Is the function ``__getattr__`` of a package: imports a submodule when it is asked for. It stays when
    hooks are taken out: the program may still need what was deferred."""

    def __init__(self, package: ModuleType) -> None:
        self._package = package.__name__
        self._before = package.__dict__.get("__getattr__")

    def __call__(self, name: str) -> Any:
        full = f"{self._package}.{name}"
        if not name.startswith("__"):
            if full == _TREES and _COMPILER not in sys.modules:
                with contextlib.suppress(Exception):  # it is imported as usual
                    _import_cuda_graphs()  # for ``torch.compiler.cudagraph_mark_step_begin()``
            try:
                return importlib.import_module(full)
            except ModuleNotFoundError as error:
                if error.name != full:
                    raise
        if self._before is not None:
            return self._before(name)
        raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
