"""Lists what of torch, of numpy and of the interpreter is known to answer by its arguments alone.

What is not here is asked of the process, and `questions` refuses it.
"""

from __future__ import annotations

MODULES = frozenset(
    (
        "_frozen_importlib", "abc", "array", "ast", "base64", "binascii", "bisect", "builtins", "cmath",
        "collections", "contextlib", "copy", "copyreg", "dataclasses", "decimal", "difflib", "dis",
        "enum", "fractions", "functools", "hashlib", "heapq", "hmac", "html", "itertools", "json",
        "keyword", "math", "mpmath", "networkx", "numbers", "operator", "optree", "packaging", "pickle",
        "pprint", "queue", "re", "reprlib", "sre_compile", "statistics", "string", "struct", "sympy",
        "textwrap", "token", "torchgen", "triton", "types", "typing", "typing_extensions",
        "unicodedata", "weakref", "zlib",
    )
)  # fmt: skip
"""Modules whose functions and classes answer by their arguments alone; ``_`` before a name does not count."""
FUNCTIONS = frozenset(
    (
        "datetime.timedelta", "datetime.timezone", "genericpath.commonprefix", "inspect.Parameter",
        "inspect.Signature", "inspect.cleandoc", "inspect.getattr_static", "inspect.getdoc",
        "inspect.getfullargspec", "inspect.getmembers", "inspect.getmro", "inspect.isbuiltin",
        "inspect.isclass", "inspect.iscoroutinefunction", "inspect.isfunction", "inspect.ismethod",
        "inspect.ismodule", "inspect.isroutine", "inspect.signature", "inspect.unwrap",
        "io.BytesIO", "io.StringIO", "logging.Logger", "logging.NullHandler", "logging.critical",
        "logging.debug", "logging.error", "logging.exception", "logging.getLogger", "logging.info",
        "logging.log", "logging.warning", "os.fsdecode", "os.fsencode", "os.fspath",
        "pathlib.PurePath", "pathlib.PurePosixPath", "posixpath.basename", "posixpath.commonpath",
        "posixpath.dirname", "posixpath.isabs", "posixpath.join", "posixpath.normcase",
        "posixpath.normpath", "posixpath.split", "posixpath.splitext", "sys.audit", "sys.exc_info",
        "sys.exit", "sys.getsizeof", "sys.intern", "thread.RLock", "thread.allocate_lock",
        "thread.lock", "threading.Event", "threading.Lock", "threading.RLock", "time.monotonic",
        "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "time.process_time",
        "time.sleep", "time.thread_time", "time.time", "time.time_ns", "traceback.format_exc",
        "traceback.format_exception", "traceback.format_stack", "traceback.format_tb",
        "traceback.print_exc", "traceback.print_exception", "uuid.UUID", "warnings.catch_warnings",
        "warnings.filterwarnings", "warnings.simplefilter", "warnings.warn",
        "warnings.warn_explicit",
    )
)  # fmt: skip
"""Functions and classes of other modules of the interpreter that do so, that write for people, or that answer
differently at each call of one process."""
TORCH_WITH_ARGUMENT = (
    "torch._C_dynamo", "torch._check", "torch._custom_op", "torch._decomp", "torch._dynamo",
    "torch._functorch", "torch._guards", "torch._higher_order_ops", "torch._inductor",
    "torch._jit_internal", "torch._library", "torch._linalg_utils", "torch._lowrank",
    "torch._meta_registrations", "torch._ops", "torch._prims", "torch._prims_common", "torch._refs",
    "torch._subclasses", "torch._tensor", "torch._utils", "torch._vmap_internals", "torch.amp",
    "torch.ao", "torch.autograd", "torch.compiler", "torch.cuda", "torch.distributed._composable",
    "torch.distributed._functional_collectives", "torch.distributed._functional_collectives_impl",
    "torch.distributed._symmetric_memory", "torch.distributed._tensor",
    "torch.distributed.algorithms", "torch.distributed.device_mesh",
    "torch.distributed.distributed_c10d", "torch.distributed.fsdp", "torch.distributed.nn",
    "torch.distributed.tensor", "torch.distributions", "torch.fft", "torch.func",
    "torch.functional", "torch.fx", "torch.library", "torch.linalg", "torch.masked", "torch.nested",
    "torch.nn", "torch.onnx", "torch.overrides", "torch.profiler", "torch.signal", "torch.sparse",
    "torch.special", "torch.testing", "torch.utils._contextlib", "torch.utils._cxx_pytree",
    "torch.utils._debug_mode", "torch.utils._device", "torch.utils._foreach_utils",
    "torch.utils._functools", "torch.utils._mode_utils", "torch.utils._ordered_set",
    "torch.utils._python_dispatch", "torch.utils._pytree", "torch.utils._sympy",
    "torch.utils._triton", "torch.utils.checkpoint", "torch.utils.dlpack",
    "torch.utils.flop_counter", "torch.utils.hooks", "torch.utils.weak",
)  # fmt: skip
"""Modules of torch whose functions with an argument answer by it; ``torch`` alone is one too."""
TORCH_FUNCTIONS = frozenset(
    (
        "torch._C._distributed_c10d._resolve_process_group", "torch._C._fx_map_arg",
        "torch._C._is_tracing", "torch._check", "torch._dynamo.graph_break",
        "torch._dynamo.is_compiling", "torch._jit_internal.is_scripting",
        "torch._subclasses.fake_tensor.unset_fake_temporarily", "torch._utils.is_compiling",
        "torch.are_deterministic_algorithms_enabled", "torch.autograd.enable_grad", "torch.compile",
        "torch.compiler.cudagraph_mark_step_begin", "torch.compiler.disable",
        "torch.compiler.is_compiling", "torch.compiler.is_dynamo_compiling",
        "torch.compiler.is_exporting", "torch.cpu.synchronize", "torch.cuda.current_device",
        "torch.cuda.current_stream", "torch.cuda.default_stream", "torch.cuda.empty_cache",
        "torch.cuda.get_device_capability", "torch.cuda.get_device_name",
        "torch.cuda.get_device_properties", "torch.cuda.is_bf16_supported",
        "torch.cuda.is_current_stream_capturing", "torch.cuda.synchronize",
        "torch.fx.is_fx_symbolic_tracing", "torch.fx.traceback.format_stack",
        "torch.get_default_dtype", "torch.get_float32_matmul_precision", "torch.is_grad_enabled",
        "torch.is_inference_mode_enabled", "torch.jit.export", "torch.jit.ignore",
        "torch.jit.is_scripting", "torch.jit.is_tracing", "torch.jit.script", "torch.jit.unused",
        "torch.utils.has_triton", "torch.utils.has_triton_package",
        "torch.xpu.is_current_stream_capturing",
    )
)  # fmt: skip
"""Functions of torch whose answers are in the keys, as is the GPU, or the same during each trace."""
TORCH_OPERATORS = (
    "_fft", "_linalg", "_nested", "_nn", "_sparse", "_special",
)  # fmt: skip
"""Modules of ``torch._C`` with operators."""
TORCH_MODULES = (
    "torch._decomp", "torch._inductor", "torch._prims", "torch._refs", "torch.cuda.nvtx",
    "torch.functional", "torch.nn.functional",
)  # fmt: skip
"""Modules of torch all of whose functions compute; of Inductor the settings are in the keys."""
NOT_OPERATORS = frozenset(
    (
        "_nnpack_available", "from_file", "is_vulkan_available",
    )
)  # fmt: skip
"""Functions in C that stand beside torch's operators and ask the machine."""
TORCH_ACTIONS = (
    "autocast_decrement", "autocast_increment", "clear", "disable", "enter", "exit", "log", "pop",
    "push", "set",
)  # fmt: skip
"""How the names of functions in C of torch begin that do something and answer nothing."""
NUMPY_ASKS = frozenset(
    (
        "DataSource", "array2string", "array_repr", "array_str", "format_float_positional",
        "format_float_scientific", "fromfile", "fromregex", "genfromtxt", "get_include",
        "get_printoptions", "getbufsize", "geterr", "geterrcall", "load", "loadtxt", "memmap",
        "open_memmap", "show_config", "show_runtime",
    )
)  # fmt: skip
"""Functions and classes in C of numpy that read files or settings, and those that dispatch on arrays."""
NUMPY_FUNCTIONS = frozenset(
    (
        "base_repr", "binary_repr", "broadcast_shapes", "eye", "full", "identity", "isfortran",
        "isscalar", "issubdtype", "iterable", "mintypecode", "ones", "tri",
    )
)  # fmt: skip
"""Functions in Python of numpy that answer by their arguments, beside those that dispatch on arrays."""
