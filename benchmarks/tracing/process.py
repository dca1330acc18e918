"""Run one process of the experiment: ``process.py MODEL WAY FILE DEVICE``. Prints one line of JSON.

A model may have a number of layers, as in ``llama:22``.

``record``: compile, and write what Dynamo made of each frame. ``frames``: give that to Dynamo. ``pytorch``:
PyTorch's own start over the caches of the builder. ``eager``: no compile. ``differences``: give the frames to
a service that differs from the builder, each time in a fork, and judge by eager. ``difference NAME``: one of
them, in this process, for devices that a fork cannot use.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])  # so that `python FILE` works

import torch  # noqa: E402
import torch._dynamo.convert_frame  # noqa: E402

from benchmarks import models  # noqa: E402
from benchmarks.tracing.differences import DIFFERENCES, Service  # noqa: E402

STEADY = 20


def tensors(output: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def same(one: Any, other: Any, exactly: bool = True) -> bool:
    pairs = list(zip(tensors(one), tensors(other), strict=True))
    if exactly:
        return all(torch.equal(a, b) for a, b in pairs)
    return all(a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)


def built(name: str, device: str) -> tuple[Any, dict[str, Any]]:
    """Return a model and its inputs, on a device."""
    factory, _, layers = name.partition(":")
    model, inputs = getattr(models, factory)(*([int(layers)] if layers else []))
    return model.to(device), {key: value.to(device) for key, value in inputs.items()}


def main(model_name: str, way: str, file: Path, device: str) -> dict[str, Any]:
    threads = torch.get_num_threads()
    if way == "differences":
        torch.set_num_threads(1)  # A fork of a process with threads would wait for them for ever.
    model, inputs = built(model_name, device)
    if way == "record":
        return record(model, inputs, file)
    if way == "differences":
        return {"differences": differences(Service(model, inputs), file, threads)}
    if way.startswith("difference "):
        from benchmarks.tracing import frames

        replay = frames.Replay(pickle.loads(file.read_bytes()))
        return one_difference(DIFFERENCES[way.partition(" ")[2]], Service(model, inputs), replay)
    return serve(model, inputs, way, file, device)


def serve(model: Any, inputs: dict[str, Any], way: str, file: Path, device: str) -> dict[str, Any]:
    """Call the model until it is steady, and return what that took."""
    replay = None
    if way == "frames":
        from benchmarks.tracing import frames

        saved = pickle.loads(file.read_bytes())
        replay = frames.Replay(saved)
    call = model if way == "eager" else torch.compile(model)
    times = []
    with torch.no_grad():
        for _ in range(2 + STEADY):
            begin = time.perf_counter()
            output = call(**inputs)
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    answer = {
        "first": times[0],
        "second": times[1],
        "steady": sorted(times[2:])[STEADY // 2],
        "traced": torch._dynamo.utils.counters["stats"].get("unique_graphs", 0),
    }
    if replay is not None:
        answer |= {"used": replay.used, "reasons": replay.reasons, "seconds": replay.seconds}
        answer["same"] = same(output, saved["output"])
    return answer


def record(model: Any, inputs: dict[str, Any], file: Path) -> dict[str, Any]:
    from benchmarks.tracing import frames

    recorded = frames.record()
    call = torch.compile(model)
    with torch.no_grad():
        for _ in range(3):
            output = call(**inputs)
    frames.save(file, recorded, output)
    return {
        "frames": len(recorded),
        "refused": [one.refused for one in recorded if one.refused],
        "guards": sum(one.counts["guards"] for one in recorded),
        "by identity": sum(one.counts["by identity"] for one in recorded),
        "bytes": file.stat().st_size - len(pickle.dumps(output)),
    }


# Differences ----------------------------------------------------------------------------------


def differences(service: Service, file: Path, threads: int) -> dict[str, Any]:
    """Return for each difference whether a frame was used, and whether the numbers are eager's."""
    from benchmarks.tracing import frames

    saved = pickle.loads(file.read_bytes())
    answers = {}
    for name, differ in DIFFERENCES.items():
        answer = Path(f"{file}.answer")
        child = os.fork()
        if not child:
            torch.set_num_threads(threads)
            answer.write_text(json.dumps(one_difference(differ, service, frames.Replay(saved))))
            os._exit(0)
        os.waitpid(child, 0)
        answers[name] = json.loads(answer.read_text())
        answer.unlink()
    return answers


def one_difference(differ: Callable[[Service], object], service: Service, replay: Any) -> dict[str, Any]:
    torch.set_grad_enabled(False)
    try:
        differ(service)
        torch.manual_seed(1)
        eager = service.model(**service.inputs)
    except (TypeError, RuntimeError) as error:
        return {"impossible": str(error)[:200]}
    # Only whether a frame is used matters, and the numbers if it is. A trace instead of it would take long.
    torch._dynamo.convert_frame._compile = replay.only_recorded
    torch.manual_seed(1)
    output = torch.compile(service.model)(**service.inputs)
    right = same(output, eager, exactly=False)
    return {"used": replay.used, "right": right, "why": replay.reasons[:1]}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])))
