"""One measured process of a row: ``python process.py ROW.json OUTPUT.pt [watch]``; JSON on the last line.

It restores what CACHESVC_NAME names, or nothing. ``first`` is the time from just before ``torch.compile``
to the first outputs of all inputs. With ``watch`` it tells which files in the cache folders were read.
"""

import time

began = time.perf_counter()
import cachesvc_client.auto  # noqa: E402

attached = time.perf_counter()

import contextlib  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import cachesvc_client  # noqa: E402
from cachesvc_client import importhook, kinds, observe  # noqa: E402
from cachesvc_client.wire.codec import plain  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
work: list[str] = []
"""What was done although an entry was there: for people who look for the reason."""


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger("cachesvc").setLevel(logging.DEBUG)
    row, output, watch = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], "watch" in sys.argv[3:]
    observer = observe.start(audit=True)
    tell_what_is_tuned()
    import torch

    imported = time.perf_counter()
    run = script(row) if row["script"] else module(row)
    built = time.perf_counter()
    if watch:
        cachesvc_client.wait(60)
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(observe.ReadWatch(root)) for root in folders()] if watch else []
        begin = time.perf_counter()
        outputs = run()
        ready = time.perf_counter()
        observed = observer.snapshot()
    report = cachesvc_client.report()
    torch.save(outputs, output)
    answer = {
        "attach": attached - began,
        "import": imported - attached,
        "build": built - imported,
        "first": ready - begin,
        "process": ready - began,
        "state": report.state,
        "reasons": list(report.reasons),
        "seconds": report.seconds,
        "bytes_moved": report.bytes_moved,
        "revisions": plain(list(report.revisions)),
        "observed": plain(observed),
        "work": work[:20],
        "read": reads(watches) if watch else None,
    }
    print(json.dumps(answer))


def module(row):
    """Builds as `cachesvc warm` does, and answers the call of all inputs."""
    import subjects
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = getattr(subjects, row["factory"])(**row["args"])
    model.to(device=device, dtype=getattr(torch, row["dtype"])).train(row["training"])
    sets = [getattr(subjects, name)() for name in row["inputs"]]
    sets = [{key: value.to(device) for key, value in given.items()} for given in sets]

    def run():
        made = torch.compile(model, mode=row["mode"], dynamic=row["dynamic"], fullgraph=False)
        outputs = []
        for given in sets:
            if device == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            with torch.enable_grad() if row["training"] else torch.no_grad():
                result = made(**given)
                first = result[0]
                outputs.append(first.detach().float().cpu())
            if row["training"]:
                means = [item.float().mean() for item in result.values() if item.requires_grad]
                torch.stack(means).sum().backward()
                outputs += [item.grad.float().cpu() for item in model.parameters() if item.grad is not None]
        if device == "cuda":
            torch.cuda.synchronize()
        return outputs

    return run


def script(row):
    def run():
        import eager_triton

        return [eager_triton.run(row["script"]).cpu()]

    return run


def folders() -> list[Path]:
    """The cache folders of this process, made if they are not there; PyTorch's own without a session."""
    from cachesvc_client.session import process

    roots = process().folders.roots() or {kinds.inductor.NAME: Path(os.environ[kinds.inductor.VARIABLE])}
    outer = [root for root in roots.values() if not any(other in root.parents for other in roots.values())]
    for root in outer:
        root.mkdir(parents=True, exist_ok=True)
    return outer


def reads(watches) -> dict[str, object]:
    """How many files of a kind were read, and which others: those that no rule covers."""
    known: dict[str, int] = {}
    others = []
    for watch in watches:
        for path in sorted(watch.read()):
            inner = path.split("/", 2)
            if inner[0] == "triton" and len(inner) == 3:
                kind, within = kinds.triton, inner[2]
            else:
                kind, within = kinds.inductor, path
            if kind.RULES.rule(within) is None:
                others.append(path)
            else:
                known[kind.NAME] = known.get(kind.NAME, 0) + 1
    return {**known, "no rule": others}


def tell_what_is_tuned() -> None:
    def around(what):
        def wrap(original):
            def told(self, *args, **kwargs):
                if len(work) < 200:
                    info = getattr(self, "autotune_cache_info", None) or {}
                    results = len(getattr(self, "compile_results", ()) or ())
                    kernel = getattr(getattr(self, "fn", None), "__name__", "?")
                    work.append(f"{what} {kernel} {results} {self.__class__.__name__} {info}"[:400])
                return original(self, *args, **kwargs)

            return told

        return wrap

    def hook(module):
        for name in ("autotune_to_one_config", "_coordinate_descent_tuning", "_precompile_config"):
            importhook.wrap(module, f"CachingAutotuner.{name}", around(name))

    def pool(module):
        def wrap(original):
            def submit(self, job, *args, **kwargs):
                work.append(f"submit {getattr(job, '__name__', job)}"[:200])
                return original(self, job, *args, **kwargs)

            return submit

        importhook.wrap(module, "SubprocPool.submit", wrap)

    importhook.when_imported("torch._inductor.runtime.triton_heuristics", hook)
    importhook.when_imported("torch._inductor.compile_worker.subproc_pool", pool)


if __name__ == "__main__":
    main()
