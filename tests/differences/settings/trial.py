"""Try one difference: run each probe in eager, from the restored cache, and compiled without a cache."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from . import judge
from .generate import Difference


class Stopped(Exception):
    """Ends a compile: that nothing was reused is known."""


class Recorder:
    """Counts compilations, and keeps the sources of the code that is loaded.

    ``may_compile``: whether a compilation goes on; else it raises ``Stopped``.
    """

    def __init__(self) -> None:
        self.compilations = 0
        self.sources: list[str] = []
        self.may_compile = True

    def install(self) -> None:
        """Hook Inductor's compile of a graph, and what loads the source of a compiled graph."""
        from torch._inductor import codecache, compile_fx

        from cachesvc_client.hooks import imports

        def counted(call: Any) -> Any:
            self.compilations += 1
            if not self.may_compile:
                raise Stopped
            return call()

        def recorded(call: Any) -> Any:
            with open(call.argument("path")) as file:
                self.sources.append(_code(file.read()))
            return call()

        # As hooks of cachesvc, which would take functions of the tests in torch for replacements.
        imports.hook(compile_fx, "fx_codegen_and_compile", counted, reaches=(Stopped,))
        imports.hook(codecache, "PyCodeCache.load_by_key_path", recorded)


_NO_CODE = ("#", "//", "compiled_module_main(", "from torch._inductor", "extern_kernels = torch")
"""What lines begin with that are comments, hold the id of a compile, or import what the code of a recorded
frame goes without (`cachesvc_client.kinds.frames.record.sources`)."""
_BENCHMARK = ("rand_strided(", "_shared_storage")
"""Words in lines that make inputs for a benchmark of the code, which nothing runs here."""


def _code(source: str) -> str:
    lines = (line for line in source.splitlines() if line.strip())
    kept = (line for line in lines if not line.lstrip().startswith(_NO_CODE))
    return "\n".join(line for line in kept if not any(word in line for word in _BENCHMARK))


def one_probe(name: str, mode: str, recorder: Recorder) -> dict[str, Any]:
    """Run a probe and return what came of it: its answer or its error, and what was loaded and compiled.

    ``mode``: *eager*, *restored* (a compilation ends the run), *mixed* (from the cache, and a compilation may
    go on) or *without* (neither graphs nor traces come from a cache; C++ kernels, whose keys are their whole
    sources, do).
    """
    import torch

    from . import probes

    probe = probes.PROBES[name]
    torch._dynamo.reset()
    hits, before, given = _hits(), recorder.compilations, _frames().activity().mark
    recorder.sources, recorder.may_compile = [], mode != "restored"
    result: dict[str, Any] = {"answer": None, "error": ""}
    try:
        with _caches(mode != "without"):
            result["answer"] = _answer(probe, compiled=mode != "eager")
    except Exception as error:  # noqa: BLE001 - an error is an answer too
        result["error"] = _root(error)
    result["compiled"] = recorder.compilations - before
    result["loaded"] = _hits() - hits
    result["given"] = _frames().activity().mark - given
    result["code"] = sorted(recorder.sources)
    return result


@contextlib.contextmanager
def _caches(on: bool) -> Iterator[None]:
    if on:
        yield
        return
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    frames = _frames()
    replayer, frames._replayer = frames._replayer, None
    try:
        with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
            yield
    finally:
        frames._replayer = replayer


def _frames() -> Any:
    """Return the state of the kind that gives recorded frames to Dynamo."""
    from cachesvc_client.process.process import process

    return process().kinds["frames"]


def _root(error: BaseException) -> str:
    """Return the type of the exception that began it."""
    while (inner := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = inner
    return type(error).__name__


def _hits() -> int:
    """Return how many graphs were loaded from a cache, and how many frames were given to Dynamo."""
    from torch._dynamo.utils import counters

    found = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
    return int(found) + int(_frames().activity().mark)


def _answer(probe: Any, compiled: bool) -> list[dict[str, Any]]:
    import torch

    from . import probes

    function, inputs = probe.make()
    options = {**probe.options, **probes.HERE.options} if compiled else {}
    call = torch.compile(function, **options) if compiled else function
    grad = contextlib.nullcontext() if probe.grad is None else torch.set_grad_enabled(probe.grad)
    with grad:
        value = call(*inputs)
        answer = judge.described(value, list(inputs))
        return answer + judge.described(_gradients(value, function, inputs), [])


def _gradients(value: Any, function: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Return the gradients of the inputs and of the parameters, where an output has any."""
    import torch
    from torch.utils._pytree import tree_leaves

    outputs = [one for one in tree_leaves(value) if isinstance(one, torch.Tensor) and one.requires_grad]
    if not outputs:
        return []
    torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])
    model = getattr(function, "module", function)
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    leaves = [one for one in (*inputs, *parameters) if isinstance(one, torch.Tensor) and one.is_leaf]
    return [one.grad for one in leaves if one.grad is not None]


def try_difference(difference: Difference, probes: tuple[str, ...], recorder: Recorder) -> dict[str, Any]:
    """Apply a difference in this process, run its probes and return a row of the result.

    The row has ``applied`` (or ``why`` it was not), and of each probe its verdict (`judge.verdict`).
    """
    row: dict[str, Any] = {"group": difference.group, "name": difference.name, "applied": False, "probes": {}}
    try:
        with difference.change():
            row["applied"] = True
            _run(row, probes, recorder)
    except Exception as error:  # noqa: BLE001 - this torch may refuse the value
        row["why"] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return row


def _run(row: dict[str, Any], probes: tuple[str, ...], recorder: Recorder) -> None:
    import torch

    import cachesvc_client

    random_state = torch.get_rng_state()

    def run(name: str, mode: str) -> dict[str, Any]:
        torch.set_rng_state(random_state)
        return one_probe(name, mode, recorder)

    restored = {}
    for name in probes:
        restored[name] = run(name, "restored")
        if restored[name]["compiled"] and restored[name]["loaded"]:
            restored[name] = {**run(name, "mixed"), "compiled": 0}
    report = cachesvc_client.report()
    row["report"] = report.state
    for name, result in restored.items():
        row["probes"][name] = _judged(result, functools.partial(run, name))
        row["given"] = row.get("given", 0) + result["given"]
    compiled = sum(result["compiled"] for result in restored.values())
    row["silent"] = row["report"] == "hit" and compiled > 0


def _judged(result: dict[str, Any], run: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Return the verdict on a probe. Eager and a compile without a cache run only where they are needed."""
    if result["compiled"] or not result["loaded"]:
        verdict, why = judge.verdict(result, {})
        return {"verdict": verdict, "why": why}
    reference, eager = run("without"), run("eager")
    result["eager"] = eager["answer"] or []
    verdict, why = judge.verdict(result, reference)
    answer = {"verdict": verdict, "why": why}
    if not result["error"] and not eager["error"]:
        answer["unlike_eager"] = judge.difference_of(result["answer"], eager["answer"])
    return answer


def count(rows: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Return for each group how many differences there are of each outcome.

    A difference is as bad as the worst of its probes.
    """
    result: dict[str, Counter[str]] = {}
    for row in rows:
        result.setdefault(row["group"], Counter())[outcome_of(row)] += 1
    return result


WORST_FIRST = ("false hit", "unknown", "other code", "right", "compiled", "not reached")


def outcome_of(row: dict[str, Any]) -> str:
    """Return *not applied*, or the worst verdict on a probe of a difference."""
    probes = row["probes"].values()
    verdicts = {probe if isinstance(probe, str) else probe["verdict"] for probe in probes}
    if not row["applied"] or not verdicts:
        return "not applied"
    return next(one for one in WORST_FIRST if one in verdicts)
