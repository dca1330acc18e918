"""Run one measured process of a row: ``python process.py ROW.json --answer FILE [options]``.

It restores what CACHESVC_NAME names, or nothing. ``first`` is the time from just before ``torch.compile``
(before the load of a mega-cache) to all outputs of the row; the model is built before that. All methods
are counted alike, by `cachesvc_client.hooks.counters`. With ``--audit`` started processes are listed too;
such a process is not timed: Python's audit events come with every ``id()``, of which Dynamo's trace makes so
many that it takes up to twice as long.
"""

import time

began = time.perf_counter()
import cachesvc_client.auto  # noqa: E402

attached = time.perf_counter()

import argparse  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import cachesvc_client  # noqa: E402
from cachesvc.warm.worker.file_reads import ReadWatch  # noqa: E402
from cachesvc_client import kinds  # noqa: E402
from cachesvc_client.hooks import counters, imports  # noqa: E402
from cachesvc_client.kinds.cuda.kind import CudaState  # noqa: E402
from cachesvc_client.wire.codec import plain  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
work: list[str] = []
"""Names of the kernels that were compiled or tuned although an entry was there, for people who look for the
reason."""


def main() -> None:
    options = _options()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger("cachesvc").setLevel(logging.DEBUG)
    row = json.loads(options.row.read_text())
    observer = counters.start(audit=options.audit)
    libraries = CudaState()
    libraries.use_folder(of_libraries())  # The folder of PyTorch alone; cachesvc names a folder of its own.
    tell_what_is_done()
    import torch

    imported = time.perf_counter()
    import outputs
    import workloads

    run = workloads.prepare(row)
    workloads.synchronise()
    built = time.perf_counter()
    if options.watch:
        cachesvc_client.wait(60)
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(ReadWatch(root)) for root in folders()] if options.watch else []
        begin = time.perf_counter()
        if options.load:
            torch.compiler.load_cache_artifacts(options.load.read_bytes())
        loaded = time.perf_counter()
        tensors = run(workloads.compiler(row))
        workloads.synchronise()
        ready = time.perf_counter()
        observed = observer.snapshot()
    answer = {
        "audited" if options.audit else "first": ready - begin,
        "attach": attached - began,
        "import": imported - attached,
        "build": built - imported,
        "process": ready - began,
        "observed": plain(observed),
        "work": work[:20],
        "beside": made_by_libraries(libraries),
        "memory": memory(),
    }
    if options.load:
        answer["load"] = loaded - begin
    if options.save:
        artifacts = torch.compiler.save_cache_artifacts()
        options.save.write_bytes(artifacts[0] if artifacts else b"")
    if watches:
        answer["read"] = reads(watches)
    answer |= session() | compare_outputs(options, row, tensors)
    outputs.own(options.answer).write_text(json.dumps(answer))
    workloads.end()
    sys.stderr.flush()
    os._exit(0)  # At exit PyTorch waits until its compile workers are up before it ends them.


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", type=Path)
    parser.add_argument("--answer", type=Path, required=True, help="JSON; RANK in it is replaced")
    parser.add_argument("--load", type=Path, help="a mega-cache to load before compiling")
    parser.add_argument("--save", type=Path, help="write the mega-cache of this process here")
    parser.add_argument("--expect", type=Path, help="compare the outputs with kept ones")
    parser.add_argument("--audit", action="store_true", help="list the processes that are started")
    parser.add_argument("--watch", action="store_true", help="wait for the restore, tell what is read")
    return parser.parse_args()


def session() -> dict[str, object]:
    """Return the client's report; empty without CACHESVC_NAME."""
    if not os.environ.get("CACHESVC_NAME"):
        return {}
    from cachesvc_client.process.process import process

    report = cachesvc_client.report()
    return {
        "state": report.state,
        "reasons": list(report.reasons),
        "why_traced": list(process().all_kinds.explain(())),
        "seconds": report.seconds,
        "bytes_moved": report.bytes_moved,
        "revisions": plain(list(report.revisions)),
    }


def compare_outputs(options: argparse.Namespace, row, tensors) -> dict[str, object]:
    """Compare the outputs with the builder's own."""
    import outputs

    if not options.expect or not outputs.own(options.expect).is_file():
        return {}
    expected = outputs.load(outputs.own(options.expect))
    return {
        "against_builder": outputs.compare_outputs(
            outputs.digests_of(tensors), expected, outputs.TOLERANCE[row["dtype"]]
        )
    }


def memory() -> int:
    """Return the largest resident size so far, in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def of_libraries() -> Path:
    """Return where libraries keep their compiled kernels: the folder that this process's environment
    names."""
    return Path(os.environ.get(kinds.BY_NAME["cuda"].folder.variable) or Path.home() / ".nv/ComputeCache")


def made_by_libraries(alone: CudaState) -> int:
    """Return the number of kernels that libraries such as cuDNN compiled in this process."""
    from cachesvc_client.process.process import process

    if os.environ.get("CACHESVC_NAME"):
        state = process().kinds["cuda"]
        assert isinstance(state, CudaState)
        return len(state.compiled())
    return len(alone.compiled())


def folders() -> list[Path]:
    """Return the cache folders of this process, and make missing ones; without a session they are PyTorch's
    own."""
    from cachesvc_client.process.process import process

    variable = kinds.BY_NAME["inductor"].folder.variable
    roots = process().folders.roots() or {"inductor": Path(os.environ[variable])}
    outer = [root for root in roots.values() if not any(other in root.parents for other in roots.values())]
    for root in outer:
        root.mkdir(parents=True, exist_ok=True)
    return outer


def reads(watches) -> dict[str, object]:
    """Return how many files of each kind were read, and the files that no rule covers."""
    known: dict[str, int] = {}
    others = []
    for watch in watches:
        for path in sorted(watch.read()):
            inner = path.split("/", 2)
            if inner[0] == "triton" and len(inner) == 3:
                kind, within = kinds.BY_NAME["triton"], inner[2]
            else:
                kind, within = kinds.BY_NAME["inductor"], path
            if kind.rules.rule(within) is None:
                others.append(path)
            else:
                known[kind.name] = known.get(kind.name, 0) + 1
    return {**known, "no rule": others}


def tell_what_is_done() -> None:
    """Print the names of the kernels that are compiled or tuned."""

    def around(what):
        def wrap(original):
            def announced(self, *args, **kwargs):
                if len(work) < 200:
                    info = getattr(self, "autotune_cache_info", None) or {}
                    results = len(getattr(self, "compile_results", ()) or ())
                    kernel = getattr(getattr(self, "fn", None), "__name__", "?")
                    work.append(f"{what} {kernel} {results} {self.__class__.__name__} {info}"[:400])
                return original(self, *args, **kwargs)

            return announced

        return wrap

    def hook(module):
        for name in ("autotune_to_one_config", "_coordinate_descent_tuning", "_precompile_config"):
            imports.wrap(module, f"CachingAutotuner.{name}", around(name))

    def pool(module):
        def wrap(original):
            def submit(self, job, *args, **kwargs):
                work.append(f"submit {getattr(job, '__name__', job)}"[:200])
                return original(self, job, *args, **kwargs)

            return submit

        imports.wrap(module, "SubprocPool.submit", wrap)

    imports.when_imported("torch._inductor.runtime.triton_heuristics", hook)
    imports.when_imported("torch._inductor.compile_worker.subproc_pool", pool)


if __name__ == "__main__":
    main()
