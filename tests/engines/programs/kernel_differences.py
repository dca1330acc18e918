"""Compile one TileLang kernel again and again, each time with one difference, and print as JSON where each
came from: ``entry`` for a restored one, ``compiled`` for one that was compiled here.

The process is attached to a name under which the kernel without a difference is published. TileLang's own
caches are emptied before each."""

import contextlib
import json
import sys

import tilelang
import tilelang.cache
import tilelang.language
import tvm_ffi
from changed_variables import changed_variables
from kernels import matmul, report, run

BODIES = {
    "body": {"factor": 3},
    "layout": {"transposed": True},
    "dtype float64": {"dtype": "float64"},
    "tile 8": {"tile": 8},
    "tile 32": {"tile": 32},
    "shape": {"size": 96},
}
OPTIONS = {
    "outputs": {"out_idx": None},
    "flag -O2": {"compile_flags": ["-O2"]},
    "flag -O3": {"compile_flags": ["-O3"]},
    "flag -march=native": {"compile_flags": ["-march=native"]},
    "definition": {"compile_flags": ["-DSOMETHING=1"]},
    "include path": {"compile_flags": ["-I/tmp"]},
    "no vectors": {"pass_configs": {"tirx.disable_vectorize": True}},
    "no simplification": {"pass_configs": {"tl.disable_safe_memory_legalize": True}},
    "layout cost model": {"pass_configs": {"tl.layout_cost_model": "io-aware"}},
    "target tag": {"target": {"kind": "c", "keys": ["cpu", "other"]}},
    "target mcpu": {"target": {"kind": "c", "mcpu": "native"}},
}
VARIABLES = {
    "include path by a variable": {"CPATH": "/nonexistent"},
    "library path by a variable": {"LIBRARY_PATH": "/nonexistent"},
    "headers of TileLang elsewhere": {"TL_TEMPLATE_PATH": "/nonexistent"},
    "a variable of a later TileLang": {"TILELANG_OF_A_LATER_RELEASE": "1"},
    "another compiler": {"CXX": sys.executable},
    "another compiler by CC": {"CC": sys.executable},
}


@contextlib.contextmanager
def attribute(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def postprocessor(name):
    tvm_ffi.register_global_func(name, lambda code, _: code, override=True)
    try:
        yield
    finally:
        tvm_ffi.registry.remove_global_func(name)


OTHERS = {
    "TileLang's version in its key": lambda: attribute(
        sys.modules["tilelang.cache.kernel_cache"], "__version__", "0.1.16"
    ),
    "TileLang's version": lambda: attribute(tilelang, "__version__", "0.1.16"),
    "the version of TVM's FFI": lambda: attribute(tvm_ffi, "__version__", "0.1.11"),
    "a program that changes sources": lambda: postprocessor("tilelang_callback_c_host_postproc"),
}


def source(body=None, options=None):
    """Compile the kernel with these differences. Return where it came from; raise if its result is wrong."""
    tilelang.cache._dispatch_map["cython"].clear_cache()
    body, options = body or {}, {"out_idx": -1, "target": "c", **(options or {})}
    kernel = tilelang.compile(matmul(tilelang.language, **body), **options)
    described = {name: value for name, value in body.items() if name != "tile"}
    close = run(kernel, returns=options["out_idx"] is not None, **described)[1]
    assert close, (body, options)
    return "entry" if "/tilelang/cachesvc/" in kernel._tilelang_cache_path else "compiled"


def try_all(answer, source, bodies=(), options=(), variables=(), others=()):
    """Compile by ``source`` with each difference alone, and put into the answer where its kernel came from.

    Each argument has differences by their labels: bodies and options of the kernel, variables, and functions
    that return a context."""
    tried = {
        **{label: (contextlib.nullcontext, body, {}) for label, body in dict(bodies).items()},
        **{label: (contextlib.nullcontext, {}, changed) for label, changed in dict(options).items()},
        **{
            label: (lambda changes=changes: changed_variables(changes), {}, {})
            for label, changes in dict(variables).items()
        },
        **{label: (change, {}, {}) for label, change in dict(others).items()},
    }
    for label, (change, body, changed) in tried.items():
        try:
            with change():
                answer["differences"][label] = source(body, changed)
        except Exception as error:  # noqa: BLE001 - TileLang refuses the difference
            answer["refused"][label] = repr(error)[:300]


def main():
    answer = {"same": {"first": source()}, "differences": {}, "refused": {}}
    try_all(answer, source, BODIES, OPTIONS, VARIABLES, OTHERS)
    with changed_variables(
        {"TILELANG_VERBOSE": "0", "TILELANG_PRINT_ON_COMPILATION": "0", "SOME_OTHER": "1"}
    ):
        answer["same"]["variables that change no code"] = source()
    answer["same"]["last"] = source()
    print(json.dumps({**answer, **report()}), flush=True)


if __name__ == "__main__":
    main()
