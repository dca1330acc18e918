"""The processes of one batch of rows: ``build``, ``record`` and ``try``, each with the batch's JSON.

Each process imports torch once and forks a child for each row.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import forks
from .judge import is_of_process, is_unlike

MODES = ("frames", "traced")
client: Any = importlib.import_module(os.environ.get("HUNT_WITH", f"{__package__}.client"))
"""What the hunt asks of the cache under test: of cachesvc's, unless another module is named."""


def main() -> None:
    what, path = sys.argv[1], Path(sys.argv[2])
    batch = json.loads(path.read_text())
    sys.path.insert(0, batch["cases"])
    {"build": build, "record": record, "try": serve}[what](batch, path.parent)


def build(batch: dict[str, Any], folder: Path) -> None:
    """Compile every row in a child, with the builder's facts, and write the bundle."""
    session = client.open_builder()
    _prepare(batch)
    results = {}
    for row in batch["rows"]:
        results[row["module"]] = forks.in_child(functools.partial(_build_row, row))
    (folder / "built.json").write_text(json.dumps(results))
    client.publish(session, folder / "rows.cachesvc", folder / "signing.key")


def record(batch: dict[str, Any], folder: Path) -> None:
    """Record the frames of every row in a child, and write the bundle again."""
    session = client.attach(folder / "rows.cachesvc")
    _prepare(batch)
    client.start_recording(batch["serving"])
    results = {}
    for row in batch["rows"]:
        results[row["module"]] = forks.in_child(functools.partial(_record_row, row))
    (folder / "recorded.json").write_text(json.dumps(results))
    client.publish(session, folder / "rows.cachesvc", folder / "signing.key")


def serve(batch: dict[str, Any], folder: Path) -> None:
    """Restore the bundle and try every row in a child. Write the rows with what came of them."""
    from .judge import judge
    from .restored_folder import RestoredFolder

    client.attach(folder / "rows.cachesvc")
    _prepare(batch)
    client.read_records()
    put_back = RestoredFolder(client.folders()).put_back
    built = json.loads((folder / "built.json").read_text())
    recorded = json.loads((folder / "recorded.json").read_text()) if batch["frames"] else {}
    modes = MODES if batch["frames"] else MODES[1:]
    with (folder / "tried.jsonl").open("w") as out:
        for row in batch["rows"]:
            tried = _try_row(row, modes, put_back)
            name = row["module"]
            out.write(json.dumps(judge(row, tried, built.get(name, {}), recorded.get(name, {}))) + "\n")
            out.flush()


def _prepare(batch: dict[str, Any]) -> None:
    """Import what a compile imports, and have PyTorch work out what it works out once."""
    import torch
    from torch._inductor import codecache, config, cpu_vec_isa

    for function in (codecache.torch_key, codecache.CacheBase.get_system, cpu_vec_isa.valid_vec_isa_list):
        try_quietly(function)
    if not batch["lowered"]:
        _call_operators(config)
    torch.set_num_threads(1)
    modules = forks.in_child(_modules_of_a_compile)
    for module in modules if isinstance(modules, list) else ():
        try_quietly(functools.partial(importlib.import_module, module))
    _register_patterns()
    client.judge_torch()
    # A collection writes into every object, and so copies a child's memory.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def _call_operators(config: Any) -> None:
    """Have Inductor call every operator, so that no kernel is compiled."""
    if hasattr(config, "fallback_by_default"):
        config.fallback_by_default = True
    else:
        from torch._inductor import graph

        setattr(graph, "fallback_node_due_to_unsupported_type", lambda *_, **__: True)  # noqa: B010


def _register_patterns() -> None:
    """Have Inductor trace the patterns that it looks for once, which would take each child two seconds."""
    import torch
    from torch._inductor.fx_passes import joint_graph, post_grad

    # From 2.11 on there is one set for each device.
    for arguments in ((), (torch.device("cpu"),)):
        for module in (joint_graph, post_grad):
            with contextlib.suppress(Exception):
                module.lazy_init(*arguments)


def try_quietly(function: Callable[[], Any]) -> None:
    try:
        function()
    except Exception:  # noqa: BLE001 - of another torch
        traceback.print_exc()


def _modules_of_a_compile() -> list[str]:
    import torch

    def program(x: Any) -> Any:
        return torch.nn.functional.layer_norm(x @ x.t(), (4,)).sum()

    torch.compile(program)(torch.ones(4, 8, requires_grad=True)).backward()
    return [name for name in sys.modules if name.partition(".")[0] in ("torch", "sympy")]


# In a child -----------------------------------------------------------------------------------


def _imported(row: dict[str, Any], changed: bool) -> Any:
    """Import the module of a row, with the fact as it is in this process."""
    from . import kit

    kit.CHANGED = changed
    module = importlib.import_module(row["module"])
    if changed and hasattr(module, "change"):
        module.change()
    return module


def _answer(module: Any, compiled: bool) -> Any:
    """Return the answer of a program, in plain objects; an error is an answer too."""
    import torch

    from . import answers, kit

    try:
        inputs = module.inputs() if hasattr(module, "inputs") else (kit.ramp(4, 8),)
        function = module.make() if hasattr(module, "make") else module.program
        call = torch.compile(function, **getattr(module, "OPTIONS", {})) if compiled else function
        value = module.run(call) if hasattr(module, "run") else call(*inputs)
        return {"answer": answers.plain(value, inputs), "error": ""}
    except Exception as error:  # noqa: BLE001 - an error is an answer
        return {"answer": [], "error": _root(error), "text": str(error)[-300:]}


def _root(error: BaseException) -> str:
    while (inner := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = inner
    return type(error).__name__


def _build_row(row: dict[str, Any]) -> Any:
    module = _imported(row, row["direction"] == "builder")
    eager = forks.in_child(lambda: _answer(module, compiled=False))
    compiled = _answer(module, compiled=True)
    client.after_row(row["module"])
    return {"eager": eager, "compiled": compiled}


def _record_row(row: dict[str, Any]) -> Any:
    module = _imported(row, row["direction"] == "builder")
    answer = _answer(module, compiled=True)
    return {"error": answer["error"], "refused": client.save_records()}


def _try_row(row: dict[str, Any], modes: tuple[str, ...], put_back: Callable[[], None]) -> Any:
    """Return the answers of each mode, of eager and of a compile without caches.

    Where a hole is planted, the restored runs have the builder's facts.
    """
    changed = row["direction"] == "service"
    of_builder = row["planted"] and not is_of_process(row)

    def of_service() -> Any:
        module = _imported(row, changed)
        runs = {} if of_builder else _restored(module, modes, put_back)
        runs["eager"] = forks.in_child(lambda: _answer(module, compiled=False))
        restored = (*runs.values(), *planted.values())
        if (
            row["planted"]
            or row["judged_by_compile"]
            or any(is_unlike(run, runs["eager"]) for run in restored)
        ):
            runs["without"] = forks.in_child(lambda: _without(module))
        return runs

    planted: dict[str, Any] = {}
    if of_builder:
        planted = forks.in_child(lambda: _restored(_imported(row, not changed), modes, put_back))
    result = {**planted, **forks.in_child(of_service, 4 * forks.LIMIT)}
    put_back()
    return result


def _restored(module: Any, modes: tuple[str, ...], put_back: Callable[[], None]) -> dict[str, Any]:
    """Run a program with what was restored, in a child of its own for each mode."""
    runs: dict[str, Any] = {}
    for mode in modes:
        before = runs.get("frames", {})
        # Where no frame was given, that run was traced.
        was_traced = before.get("given") == 0
        runs[mode] = before if was_traced else forks.in_child(functools.partial(_restored_run, module, mode))
        put_back()
    return runs


def _restored_run(module: Any, mode: str) -> dict[str, Any]:
    if mode == "traced":
        client.give_no_frames()
    client.before_row(module.__name__)
    loaded, compiled = client.loads_and_compiles()
    answer = _answer(module, compiled=True)
    state, reasons = client.report()
    now = client.loads_and_compiles()
    answer |= {
        "loaded": now[0] - loaded,
        "given": client.frames_given(),
        "compiled": now[1] - compiled,
        "state": state,
        "reasons": reasons,
        "frames_refused": client.refused_frames(),
        "eager_after": _answer(module, compiled=False),
    }
    return dict(answer)


def _without(module: Any) -> Any:
    """Run a compile that takes neither graphs nor traces from a cache."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    client.give_no_frames()
    graphs = inductor.patch(fx_graph_cache=False, fx_graph_remote_cache=False)
    with graphs, functorch.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False):
        return _answer(module, compiled=True)


if __name__ == "__main__":
    main()
