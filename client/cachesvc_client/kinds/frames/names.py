"""Declares the names of PyTorch that this kind wraps."""

from __future__ import annotations

from ...hooks.table import Hook

FRAME = Hook(
    "torch._dynamo.convert_frame",
    "_compile",
    "gives recorded frames to Dynamo, which then does not trace; `CACHESVC_WAIT=eager` skips frames there",
    "every start traces, and `CACHESVC_WAIT=eager` waits",
    role="speed",
)
_NO_FRAMES = "an entry has no frames, so its services trace"
SERIALIZE = Hook(
    "torch._dynamo.guards",
    "CheckFunctionManager.serialize_guards",
    "records the guards of a frame",
    _NO_FRAMES,
    "2.9",
    role="speed",
)
_READS = "records what a trace reads and no guard compares"
INLINE = Hook(
    "torch._dynamo.symbolic_convert",
    "InliningInstructionTranslator.__init__",
    _READS,
    _NO_FRAMES,
    role="speed",
)
BUILTIN = Hook(
    "torch._dynamo.variables.builtin", "BuiltinVariable.call_function", _READS, _NO_FRAMES, role="speed"
)
POLYFILL = Hook(
    "torch._dynamo.variables.functions",
    "PolyfilledFunctionVariable.call_function",
    _READS,
    _NO_FRAMES,
    role="speed",
)
SKIPPED = Hook(
    "torch._dynamo.variables.functions",
    "SkipFunctionVariable.call_function",
    _READS,
    _NO_FRAMES,
    role="speed",
)
FOLDED = Hook(
    "torch._dynamo.variables.torch",
    "TorchInGraphFunctionVariable.call_function",
    _READS,
    _NO_FRAMES,
    role="speed",
)
CONSTANT = Hook(
    "torch._dynamo.variables.functions", "invoke_and_store_as_constant", _READS, _NO_FRAMES, role="speed"
)
CONSTANT_METHOD = Hook(
    "torch._dynamo.variables.constant", "ConstantVariable.call_method", _READS, _NO_FRAMES, role="speed"
)
ABSENT_KEY = Hook(
    "torch._dynamo.variables.dicts",
    "ConstDictVariable.getitem_const_raise_exception_if_absent",
    "guards that a dictionary lacks a key",
    _NO_FRAMES,
    role="speed",
)
HAS_ATTRIBUTE = Hook(
    "torch._dynamo.variables.misc",
    "PythonModuleVariable.call_obj_hasattr",
    _READS,
    _NO_FRAMES,
    until="2.14",
    role="speed",
)
ATTRIBUTE = Hook(
    "torch._dynamo.variables.misc",
    "PythonModuleVariable.var_getattr",
    _READS,
    _NO_FRAMES,
    until="2.14",
    role="speed",
)
ATTRIBUTE_BY_SLOT = Hook(
    "torch._dynamo.variables.misc",
    "PythonModuleVariable.tp_getattro_impl",
    _READS,
    _NO_FRAMES,
    "2.14",
    role="speed",
)
TENSOR = Hook(
    "torch._dynamo.variables.tensor",
    "TensorVariable.var_getattr",
    _READS,
    _NO_FRAMES,
    until="2.14",
    role="speed",
)
TENSOR_BY_SLOT = Hook(
    "torch._dynamo.variables.tensor",
    "TensorVariable.tp_getattro_impl",
    _READS,
    _NO_FRAMES,
    "2.14",
    role="speed",
)
SAME_OBJECT = Hook(
    "torch._dynamo.variables.builder",
    "make_dupe_guard",
    "guards that a local and a global name lead to one object",
    _NO_FRAMES,
    role="speed",
)
GLOBAL = Hook(
    "torch._dynamo.symbolic_convert",
    "InliningInstructionTranslator.get_globals_source_and_value",
    _READS,
    _NO_FRAMES,
    role="speed",
)
LEFT_OUT = Hook(
    "torch._dynamo.guards",
    "is_from_skip_guard_source",
    "records the guards that Dynamo omits",
    _NO_FRAMES,
    "2.9",
    role="speed",
)
INSTALL = Hook(
    "torch._dynamo.output_graph",
    "OutputGraph.install_global_by_id",
    "records which modules the bytecode of a frame needs",
    _NO_FRAMES,
    role="speed",
)
GRAPH = Hook(
    "torch._inductor.compile_fx",
    "compile_fx",
    "records what a graph calls",
    _NO_FRAMES,
    role="speed",
)
INNER = Hook(
    "torch._inductor.compile_fx",
    "_compile_fx_inner",
    "takes the graphs of the entry into the record, as they were proven",
    "a recording compiles anew, and frames of tuned graphs fail their proof",
    role="speed",
)
BUNDLE = Hook(
    "torch._inductor.triton_bundler",
    "TritonBundler.read_and_emit",
    "keeps the kernels of a graph of the entry as they were read, for the record",
    "frames of graphs with Triton kernels are not recorded",
    role="speed",
)
FOUND = Hook(
    "torch.compiler._cache",
    "CacheArtifactManager.record_artifact",
    "keeps the bytes of the graphs of a trace, which a service records that publishes by itself",
    "a service that publishes by itself records no frames",
    role="speed",
)
OPTIMIZER = Hook(
    "torch._dynamo.variables.optimizer",
    "OptimizerVariable.get_python_args",
    "records what a trace does with an optimizer",
    "a compiled step of an optimizer is traced in every start",
    role="speed",
)
PART = Hook(
    "torch._dynamo.backends.distributed",
    "SubmodCompiler.compile_submod",
    "records the parts of a graph that is split for `DistributedDataParallel`",
    "a model in a `DistributedDataParallel` with several buckets is traced in every start",
    role="speed",
)
CACHEABLE = Hook(
    "torch._functorch._aot_autograd.autograd_cache",
    "check_cacheable",
    "has the results of such parts kept",
    "a model in a `DistributedDataParallel` with several buckets is traced in every start",
    role="speed",
)
BYPASS = Hook(
    "torch._dynamo.output_graph",
    "OutputGraph.bypass_package",
    "records graphs with the tensors of an optimizer",
    "a compiled step of an optimizer is traced in every start",
    role="speed",
)
_IMPORTS = "a start with recorded frames imports Inductor's compiler all the same, in half a second"
CONFIG = Hook(
    "torch",
    "_TorchCompileInductorWrapper.get_compiler_config",
    "answers without Inductor's compiler where frames may be given",
    _IMPORTS,
    role="speed",
)
BACKEND = Hook(
    "torch._dynamo.eval_frame",
    "get_compiler_fn",
    "imports Dynamo's minifier later where frames may be given",
    _IMPORTS,
    role="speed",
)
LOAD = Hook(
    "torch._inductor.codecache",
    "FxGraphCache.cache_hit_post_compile",
    "loads the graphs of recorded frames without Inductor's lowerings",
    _IMPORTS,
    role="speed",
)
_CUDA_GRAPHS = "makes the CUDA graphs of recorded frames without Inductor's compiler"
CUDA_GRAPH = Hook(
    "torch._inductor.output_code", "cudagraph_post_compile", _CUDA_GRAPHS, _IMPORTS, role="speed"
)
CUDA_GRAPHS = Hook(
    "torch._inductor.output_code",
    "cudagraph_partition_post_compile",
    _CUDA_GRAPHS,
    _IMPORTS,
    role="speed",
)
KERNELS = Hook(
    "torch._inductor.async_compile",
    "CompiledTritonKernels.key",
    "names the Triton kernels of recorded graphs by the builder's hash of PyTorch's sources",
    "a start with recorded frames on a GPU hashes PyTorch's sources, in 0.15 s",
    role="speed",
)
SOURCES = Hook(
    "torch._inductor.codecache",
    "torch_key",
    "finds the records of tuned kernels by the builder's hash of PyTorch's sources",
    "a start with recorded frames on a GPU hashes PyTorch's sources, in 0.15 s",
    role="speed",
)
HOOKS = (
    *(FRAME, SERIALIZE, INLINE, BUILTIN, POLYFILL, SKIPPED, FOLDED, CONSTANT, CONSTANT_METHOD, INSTALL),
    *(ABSENT_KEY, HAS_ATTRIBUTE, ATTRIBUTE, ATTRIBUTE_BY_SLOT, TENSOR, TENSOR_BY_SLOT),
    *(
        OPTIMIZER,
        BYPASS,
        PART,
        CACHEABLE,
        SAME_OBJECT,
        GLOBAL,
        LEFT_OUT,
        GRAPH,
        INNER,
        BUNDLE,
        FOUND,
        CONFIG,
        BACKEND,
        LOAD,
    ),
    *(CUDA_GRAPH, CUDA_GRAPHS, KERNELS, SOURCES),
)
