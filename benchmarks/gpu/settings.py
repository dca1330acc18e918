"""Run one process of `false_hits.py`: compile small programs, each under a setting of this process, and
publish a bundle of the compiles, or restore a bundle first.

``python settings.py first|second DEVICE ANSWER --publish BUNDLE --key FILE``
``python settings.py first|second DEVICE ANSWER --restore BUNDLE [--expect ANSWER.pt]``

*first* and *second* choose one of the two values of each setting. The answer is JSON; the outputs lie beside
it as ``.pt``. With ``--expect`` they are compared with the outputs of another process, to the bit.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cachesvc_client
from cachesvc_client.hooks import counters
from cachesvc_client.process.process import process

WIDTH = 32


def main() -> None:
    gc.disable()  # It would search the objects of torch again and again; no seconds are judged here.
    options = _options()
    session = _open(options)
    import torch

    if options.restore:
        session.wait(60)
    outputs = {}
    answer: dict[str, Any] = {"torch": torch.__version__, "python": sys.version.split()[0], "cases": {}}
    if options.device == "cuda":
        answer["gpu"] = torch.cuda.get_device_name()
    expected = torch.load(options.expect, weights_only=True) if options.expect else {}
    for name, case in cases(options.device).items():
        if (options.restorable and not case.restored) or not case.has():
            continue
        value = case.values[options.which == "second"]
        answer["cases"][name], outputs[name] = _one(case, value, options.device, expected.get(name))
    report = cachesvc_client.report()
    answer |= {
        "state": report.state,
        "reasons": list(report.reasons),
        "key_differences": [str(one) for one in report.compared.key_differences],
        "compilations": report.compilations,
    }
    if options.publish:
        _publish(session, options)
    torch.save(outputs, options.answer.with_suffix(".pt"))
    options.answer.write_text(json.dumps(answer))
    sys.stderr.flush()
    os._exit(0)  # At exit PyTorch waits until its compile workers are up before it ends them.


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=("first", "second"))
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("answer", type=Path, help="JSON")
    parser.add_argument("--publish", type=Path, help="write a bundle of what this process compiled")
    parser.add_argument("--key", type=Path, help="sign the bundle with this key")
    parser.add_argument("--restore", type=Path, help="attach to this bundle")
    parser.add_argument("--restorable", action="store_true", help="only programs that a process can restore")
    parser.add_argument("--expect", type=Path, help="compare the outputs with these, to the bit")
    return parser.parse_args()


def _open(options: argparse.Namespace) -> Any:
    if options.restore:
        return cachesvc_client.attach(bundle=str(options.restore))
    from cachesvc_client.config.settings import Config
    from cachesvc_client.session.sessions import open_local

    return open_local(Config.read())


def _publish(session: Any, options: argparse.Namespace) -> None:
    from cachesvc_client.bundle.seal import SigningKey
    from cachesvc_client.config.settings import Config
    from cachesvc_client.publication.build_bundle import Build, Draft, build_bundle
    from cachesvc_client.wire.digest import Digest
    from cachesvc_client.wire.manifest.records import Workload
    from cachesvc_client.wire.names import Name, Target

    _, fingerprint = process().prepare(Config.read(), session.result)
    files = session.capture()
    draft = Draft(
        name=Name.parse("team/settings"),
        target=Target(f"{options.device}/{options.which}"),
        fingerprint=fingerprint,
        workload=Workload(script=Digest.of(b"settings")),
        scopes=process().output.scopes(),
        keys=process().output.key_facts(),
        asked=process().output.asked.facts(),
        build=Build(proof=_prove(files)),
    )
    build_bundle(files, draft, SigningKey.load(options.key), options.publish)


def _prove(files: Sequence[Any]) -> Any:
    """Return the proof that an entry needs on a torch that is not supported; ``None`` on a supported one.

    The conformance probe runs in a process of its own, and must pass."""
    from cachesvc.warm.worker.proven_environment import judge_environment

    environment = judge_environment()
    if environment.support.state == "supported":
        return None
    probe = "from cachesvc.warm.worker.conformance import failures"
    program = f"import sys; {probe}; sys.exit(str(failures() or '') or None)"
    with tempfile.TemporaryDirectory() as store:
        variables = {**os.environ, "CACHESVC_STORE": store}
        subprocess.run([sys.executable, "-c", program], env=variables, check=True)
    return environment.proof({file.kind for file in files})


# Settings -------------------------------------------------------------------------------------


@contextlib.contextmanager
def autocast(device: str, dtype: Any) -> Iterator[None]:
    """Compute in ``dtype`` by a context around the call of the model."""
    import torch

    with torch.autocast(device, dtype):
        yield


@contextlib.contextmanager
def default_dtype(_: str, dtype: Any) -> Iterator[None]:
    """Make new tensors in ``dtype``."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def autocast_dtype(device: str, dtype: Any) -> Iterator[None]:
    """Set the dtype of an autocast that names none, without switching autocast on."""
    import torch

    before = torch.get_autocast_dtype(device)
    torch.set_autocast_dtype(device, dtype)
    try:
        yield
    finally:
        torch.set_autocast_dtype(device, before)


@contextlib.contextmanager
def threads(_: str, count: int) -> Iterator[None]:
    """Compute with ``count`` threads of the CPU."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def attention_before(device: str, called: bool) -> Iterator[None]:
    """Call PyTorch's attention before the program is compiled, or do not."""
    import torch

    if called:
        query = torch.ones(1, 1, 64, 64, dtype=torch.bfloat16, device=device)
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    yield


@contextlib.contextmanager
def chosen(_: str, value: Any) -> Iterator[None]:
    """Let the programs of this process be made with ``value``."""
    _CHOSEN.append(value)
    try:
        yield
    finally:
        _CHOSEN.pop()


_CHOSEN: list[Any] = []


@contextlib.contextmanager
def nested_options(device: str, value: Any) -> Iterator[None]:
    """Allow options of nested regions, and let programs be made with ``value``."""
    import torch

    with torch._dynamo.config.patch(enable_invoke_subgraph_regional_compile=True), chosen(device, value):
        yield


@contextlib.contextmanager
def rank_of_two(_: str, rank: int) -> Iterator[None]:
    """Be this rank of a group of two whose other member is made up, and put collectives together."""
    import torch
    import torch._inductor.config
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    try:
        with torch._inductor.config.patch(bucket_all_gathers_fx="all"):
            yield
    finally:
        torch.distributed.destroy_process_group()


# Programs -------------------------------------------------------------------------------------


def linear(device: str) -> Callable[[Any], Any]:
    """Make a model that autocast changes."""
    import torch

    torch.manual_seed(0)
    inner = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float32, device=device)
    outer = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float32, device=device)
    return lambda x: outer(torch.nn.functional.gelu(inner(x)))


def training(device: str) -> Callable[[Any], Any]:
    """Make another such model, with gradients."""
    import torch

    torch.manual_seed(1)
    layer = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float32, device=device)
    return lambda x: torch.nn.functional.silu(layer(x)).sum(-1)


def ramp(device: str) -> Callable[[Any], Any]:
    """Make a function that makes a tensor of the default dtype."""
    import torch

    return lambda x: x.sin() + torch.linspace(0, 1, WIDTH, device=device)


def ramp_alone(device: str) -> Callable[[Any], Any]:
    """Make another such function."""
    import torch

    return lambda x: x.cos() + torch.linspace(0, 2, WIDTH, device=device)


def inside(device: str) -> Callable[[Any], Any]:
    """Make a function that switches autocast on by itself, and names no dtype."""
    import torch

    def function(x: Any) -> Any:
        with torch.autocast(device):
            return (x @ x.t()).relu()

    return function


def total(_: str) -> Callable[[Any], Any]:
    """Make a function that a CPU computes with several threads."""
    return lambda x: (x.exp() * 2).sum(0)


def total_alone(_: str) -> Callable[[Any], Any]:
    """Make another such function."""
    return lambda x: (x.exp() * 3).sum(0)


def pinned_constant(_: str) -> Callable[[Any], Any]:
    """Make a function that returns a constant on the host, in pinned memory or not.

    Compiled by torch 2.11, it returns a copy that is never pinned, where eager's is. Its graphs differ."""
    import torch

    pinned = _CHOSEN[-1]

    def function(x: Any) -> tuple[Any, Any]:
        constant = torch.tensor([1.0, 2.0, 3.0], pin_memory=pinned)
        return constant, x.sin() * 2

    return function


def weights(_: str) -> Callable[[Any], Any]:
    """Make a function with a softmax, which may be a part of attention."""
    return lambda x: (x * 5).softmax(-1) @ x


def dynamic(_: str) -> Callable[[Any], Any]:
    """Make a function whose reduction is compiled for the size that is hinted."""
    return lambda x: (x * 3).softmax(0)


def mark_with_hint(x: Any, hint: int) -> None:
    """Mark the first size of ``x`` as dynamic, and have it compiled for ``hint``."""
    import torch

    torch._dynamo.mark_dynamic(x, 0, hint_override=hint)


def operator(_: str) -> Callable[[Any], Any]:
    """Make a function that calls an operator of the program's own, one of two implementations of it."""
    import torch

    @torch.library.custom_op("settings::shift", mutates_args=(), schema="(Tensor x) -> Tensor")
    def shift(x: Any) -> Any:
        return x + 1

    shift.register_fake(torch.empty_like)
    if _CHOSEN[-1] == "once":
        shift.register_autograd(lambda _, gradient: gradient)
    else:
        shift.register_autograd(lambda _, gradient: gradient * 2)
    return lambda x: shift(x.sin()).sum(-1)


def nested_region(_: str) -> Callable[[Any], Any]:
    """Make a function with a nested region that has options of its own."""
    import torch
    from torch._higher_order_ops.invoke_subgraph import NestedCompileRegionOptions

    options = NestedCompileRegionOptions(partitioner=_CHOSEN[-1])

    @torch.compiler.nested_compile_region(options=options)
    def region(x: Any) -> Any:
        return x.sin().cos().exp()

    return lambda x: region(x).sum(-1)  # Called twice, torch 2.11 itself answers a wrong gradient.


def gathered(_: str) -> Callable[[Any], Any]:
    """Make a function with two all-gathers, which a pass puts together."""
    import torch
    from torch.distributed._functional_collectives import all_gather_tensor

    def function(x: Any) -> Any:
        group = torch.distributed.group.WORLD
        return all_gather_tensor(x.sin(), 0, group) * 2 + all_gather_tensor(x.cos(), 0, group)

    return function


def _has_hints() -> bool:
    import inspect

    import torch

    return "hint_override" in inspect.signature(torch._dynamo.mark_dynamic).parameters


def _has_nested_options() -> bool:
    import importlib

    import torch

    # The package has an operator of that name too.
    module = importlib.import_module("torch._higher_order_ops.invoke_subgraph")
    options = getattr(module, "NestedCompileRegionOptions", None)
    known = hasattr(torch._dynamo.config, "enable_invoke_subgraph_regional_compile")
    return known and "partitioner" in getattr(options, "__dataclass_fields__", ())


def _has_buckets() -> bool:
    """Return whether this torch puts all-gathers together. Torch 2.9 does, and its numbers are wrong then."""
    import torch._inductor.config

    known = torch.distributed.is_available() and hasattr(torch._inductor.config, "bucket_all_gathers_fx")
    return known and not torch.__version__.startswith("2.9.")


@dataclass(frozen=True)
class Case:
    """Holds a program with the two values of a setting.

    ``grad``: gradients are computed too. ``graphs_alone``: PyTorch's cache of AOTAutograd is off, so that the
    cache of Inductor's graphs is used by itself. ``mark``: called with the input and the value before a call.
    ``restored``: whether a process with the same value restores it. ``has``: whether this torch has the
    setting."""

    program: Callable[[str], Callable[[Any], Any]]
    setting: Callable[[str, Any], contextlib.AbstractContextManager[None]]
    values: tuple[Any, Any]
    grad: bool = False
    graphs_alone: bool = False
    mark: Callable[[Any, Any], None] | None = None
    restored: bool = True
    has: Callable[[], bool] = lambda: True


def cases(device: str) -> dict[str, Case]:
    """Return the programs with their settings.

    Pinned memory and an order of attention kernels that changes need a GPU. The latter comes first: other
    programs have PyTorch choose a kernel, too."""
    import torch

    attention = Case(weights, attention_before, (False, True))
    pinned = Case(pinned_constant, chosen, (False, True), graphs_alone=True)
    halves = (torch.bfloat16, torch.float16)
    wholes = (torch.float32, torch.float64)
    return (
        ({"attention before": attention} if device == "cuda" else {})
        | {
            "autocast": Case(linear, autocast, halves),
            "autocast, training": Case(training, autocast, halves, grad=True),
            "autocast inside the graph": Case(inside, autocast_dtype, halves),
            "default dtype": Case(ramp, default_dtype, wholes),
            "default dtype, FX key alone": Case(ramp_alone, default_dtype, wholes, graphs_alone=True),
            "threads": Case(total, threads, (2, 1)),
            "threads, FX key alone": Case(total_alone, threads, (2, 1), graphs_alone=True),
            "hint of a dynamic size": Case(dynamic, chosen, (64, 512), mark=mark_with_hint, has=_has_hints),
            "rank under bucketing": Case(gathered, rank_of_two, (0, 1), has=_has_buckets),
            "an operator's gradient": Case(operator, chosen, ("once", "twice"), grad=True),
            "options of a nested region": Case(
                nested_region,
                nested_options,
                ("default_partition", "min_cut_rematerialization_partition"),
                grad=True,
                restored=False,
                has=_has_nested_options,
            ),
        }
        | ({"pinned constant, FX key alone": pinned} if device == "cuda" else {})
    )


# One program ----------------------------------------------------------------------------------


def _one(case: Case, value: Any, device: str, expected: Any) -> tuple[dict[str, Any], list[Any]]:
    import torch
    import torch._functorch.config

    torch._dynamo.reset()
    observer = counters.start()
    caches = torch._functorch.config.patch(enable_autograd_cache=not case.graphs_alone)
    with caches, case.setting(device, value), torch.set_grad_enabled(case.grad):
        program = case.program(device)
        eager = _call(program, device, case, value)
        begin = time.perf_counter()
        outputs = _call(torch.compile(program), device, case, value)
        seconds = time.perf_counter() - begin
    observation = observer.snapshot()
    answer = {
        "value": str(value).removeprefix("torch."),
        "dtype": str(outputs[0].dtype).removeprefix("torch."),
        "eager_dtype": str(eager[0].dtype).removeprefix("torch."),
        "difference": max(float((a.double() - b.double()).abs().max()) for a, b in zip(outputs, eager)),  # noqa: B905
        "allowed": _allowed(eager, value),
        "compilations": observation.compilations,
        "compilers": observation.compiler_processes,
        "hits": observation.torch.aot_hits + observation.torch.fx_hits,
        "seconds": round(seconds, 2),
    }
    if expected is not None:
        answer["same"] = all(torch.equal(a, b) for a, b in zip(outputs, expected))  # noqa: B905
    return answer, outputs


def _call(program: Callable[[Any], Any], device: str, case: Case, value: Any) -> list[Any]:
    """Return the outputs, and the gradient of the input if the case has one, on the CPU."""
    import torch

    x = torch.arange(WIDTH * WIDTH, dtype=torch.float32, device=device).reshape(WIDTH, WIDTH) / (
        WIDTH * WIDTH
    )
    x.requires_grad_(case.grad)
    if case.mark is not None:
        case.mark(x, value)
    output = program(x)
    outputs = list(output) if isinstance(output, tuple) else [output]
    if case.grad:
        outputs[0].float().sum().backward()
    return [one.detach().cpu() for one in (*outputs, x.grad) if one is not None]


def _allowed(eager: list[Any], value: Any) -> float:
    """Return the allowed difference: a few roundings of the coarsest dtype of the computation, at the size of
    the largest value.

    The dtypes are those of the outputs, of the inputs (float32), and ``value`` if that is a dtype: a gradient
    is float32 also if autocast computed it in another dtype."""
    import torch

    dtypes = {
        torch.float32,
        *(one.dtype for one in eager),
        *([value] if isinstance(value, torch.dtype) else []),
    }
    eps = max(torch.finfo(dtype).eps for dtype in dtypes)
    return 16 * eps * max(1.0, *(float(one.abs().max()) for one in eager))


if __name__ == "__main__":
    main()
