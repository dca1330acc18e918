"""The builder and the service of a run: ``build BUNDLE KEY``, ``record BUNDLE KEY`` and ``try BUNDLE OUT
[options]``.

The service restores a bundle once and forks a child for each difference, so that the children share the
imports and the restored folder, and nothing else. After each child the folder is as cachesvc restored it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT = 120.0
"""Seconds that one difference may take."""


def main() -> None:
    options = _options()
    if options.plant:
        leave_out(options.plant)
    if options.what == "variables":
        from . import generate

        options.out.write_text(json.dumps(generate.variables()))
    elif options.what in ("build", "record"):
        make = build if options.what == "build" else record
        make(options.bundle, options.out, options.probes.split(), options.under)
    else:
        serve(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("build", "record", "try", "variables"))
    parser.add_argument("bundle", type=Path)
    parser.add_argument("out", type=Path, help="build: the signing key; else: the JSON to write")
    parser.add_argument("--probes", default="", help="names of probes; all if empty")
    parser.add_argument("--only", default="", help="regular expression for 'group: name'")
    parser.add_argument("--share", default="0/1", help="I/N: every Nth difference, from the Ith")
    parser.add_argument("--without", default="", help="regular expression for differences that are left out")
    parser.add_argument("--some", type=int, default=0, help="so many, the same share of each group")
    parser.add_argument("--seconds", type=float, default=1e9, help="no difference is begun after this time")
    parser.add_argument(
        "--variable", default="", help="the name of the variable that differs in this process"
    )
    parser.add_argument("--under", default="", help="build: 'group: name' of the builder's difference")
    parser.add_argument("--plant", default="", help="a part that keys shall lack: a fault that must be found")
    return parser.parse_args()


def leave_out(part: str) -> None:
    """Plant a fault: no key of this process gets the part ``part``. To be called before attach."""
    from cachesvc_client.graphs import keys

    completed = keys._parts

    def without(parts: Any, details: Any, graph: Any) -> Any:
        return {name: value for name, value in completed(parts, details, graph).items() if name != part}

    keys._parts = without


# The builder ----------------------------------------------------------------------------------


def build(bundle: Path, key: Path, names: Sequence[str], under: str) -> None:
    """Compile the probes ``names``, all if empty, and write a bundle of what was compiled.

    ``under``: the difference that holds meanwhile; none if empty.
    """
    from cachesvc_client.config.settings import Config
    from cachesvc_client.session.sessions import open_local

    session = open_local(Config.read())
    _compile(names, under)
    _seal(session, bundle, key)


def record(bundle: Path, key: Path, names: Sequence[str], under: str) -> None:
    """Restore a bundle, record what Dynamo makes of the probes, and write the bundle again with the records.

    The parameters are those of `build`.
    """
    import cachesvc_client
    from cachesvc_client.process.process import process

    session = cachesvc_client.attach("team/differences", bundle=bundle)
    process().all_kinds.start_recording()
    if not cachesvc_client.wait(60):
        sys.exit("the restore is not over after 60 s")
    _compile(names, under)
    _seal(session, bundle, key, whole=True)
    for line in process().all_kinds.not_recorded():
        print(f"not recorded: {line}", file=sys.stderr)


def _compile(names: Sequence[str], under: str) -> None:
    """Run the probes compiled, under the difference ``under``."""
    from . import generate, probes, trial

    everything = generate.differences()[0] if under else []
    changes = [one.change() for one in everything if f"{one.group}: {one.name}" == under]
    if under and not changes:
        sys.exit(f"no difference has the name {under!r}")
    with changes[0] if changes else contextlib.nullcontext():
        for name in names or probes.PROBES:
            result = trial.one_probe(name, "mixed", trial.Recorder())
            if result["error"]:
                print(f"the probe {name} does not compile: {result['error']}", file=sys.stderr)


def _seal(session: Any, bundle: Path, key: Path, whole: bool = False) -> None:
    """Write a bundle of what this process compiled or used; if ``whole``, of all that its folders hold."""
    from tests.e2e.programs.recorded_session import publish

    target = "probes/float32/default"
    publish(session, bundle, key, whole, "team/differences", target, measured={"first_call": 10.0})


# The service ----------------------------------------------------------------------------------


def serve(options: argparse.Namespace) -> None:
    """Restore the bundle, try the differences and write one row for each.

    SIGTERM ends it after the difference that is being tried.
    """
    import cachesvc_client

    from . import trial

    for module in ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codecache"):
        importlib.import_module(module)
    # Before attach: cachesvc would count the programs that it compiles, and report no hit.
    _work_out()
    recorder = trial.Recorder()
    # Before attach: the hooks of cachesvc are then around these, and count a compilation that is stopped.
    recorder.install()
    cachesvc_client.attach("team/differences", bundle=options.bundle)
    if not cachesvc_client.wait(60):
        sys.exit("the restore is not over after 60 s")
    from cachesvc_client.process.process import process

    from ..hunt.forks import in_child
    from ..hunt.restored_folder import RestoredFolder
    from . import generate, probes

    folder = RestoredFolder(list(process().folders.roots().values()))
    everything, left_out = generate.differences()
    chosen = _chosen(everything, options)
    names = tuple(options.probes.split()) or tuple(probes.PROBES)
    rows = []

    def child(difference: Any, some: tuple[str, ...], say_modules: bool = False) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            if difference.group == "config inductor":
                _forget()
            row = trial.try_difference(difference, some, recorder)
            loaded = [name for name in sys.modules if name.partition(".")[0] in ("torch", "sympy")]
            return {**row, "modules": loaded} if say_modules else row

        row: dict[str, Any] = in_child(work, LIMIT)
        folder.put_back()
        named = {"group": difference.group, "name": difference.name}
        failed = {**named, "applied": False, "probes": {}, "why": row.get("failed", "")[-300:]}
        return row if "probes" in row else failed

    # It flushes the CPU's caches to measure guards for a log line, which takes a twentieth of a child's time.
    sys.modules["torch._dynamo.guards"].profile_guard_manager = lambda *_: 0.0
    # What a compile imports is imported once, here.
    for module in child(everything[0], names, say_modules=True).get("modules", ()):
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    _register_patterns()
    gc.collect()
    gc.freeze()
    end = time.monotonic() + options.seconds
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    for difference in chosen:
        if stopped or time.monotonic() > end:
            break
        row = child(difference, tuple(name for name in names if name in (difference.probes or names)))
        rows.append(row)
        print(json.dumps(row), flush=True)
    result = {
        "rows": rows,
        "of": len(everything),
        "left_out": left_out,
        "torch": sys.modules["torch"].__version__,
    }
    options.out.write_text(json.dumps(result))


def _register_patterns() -> None:
    """Have Inductor trace the patterns that it looks for once, which would take each child two seconds."""
    import torch
    from torch._inductor.fx_passes import joint_graph, post_grad

    # From 2.11 on there is one set for each device.
    for arguments in ((), (torch.device("cpu"),)):
        for module in (joint_graph, post_grad):
            with contextlib.suppress(Exception):
                module.lazy_init(*arguments)


def _work_out() -> None:
    """Have PyTorch work out once what it keeps for a process: the digest of its own sources, and what the
    compiler can do with the CPU, for which it compiles and runs three programs."""
    from torch._inductor import codecache, cpu_vec_isa

    for function in (codecache.torch_key, codecache.CacheBase.get_system, cpu_vec_isa.valid_vec_isa_list):
        with contextlib.suppress(Exception):
            function()


def _forget() -> None:
    """Have this process work out again what Inductor's settings decide of `_work_out`."""
    from torch._inductor import cpu_vec_isa

    with contextlib.suppress(AttributeError):
        cpu_vec_isa.valid_vec_isa_list.cache_clear()


def _chosen(everything: Sequence[Any], options: argparse.Namespace) -> list[Any]:
    from . import generate

    if options.variable:
        value = os.environ[options.variable]
        named = generate.Difference(
            "variable", f"{options.variable}={value}", contextlib.nullcontext, probes=generate.FEW
        )
        return [named]
    index, count = map(int, options.share.split("/"))
    wanted, done = re.compile(options.only), re.compile(options.without or "(?!)")

    def is_chosen(text: str) -> bool:
        return bool(wanted.search(text)) and not done.search(text)

    ordered = spread(everything) if options.some or options.seconds < 1e9 else everything
    chosen = [one for one in ordered if is_chosen(f"{one.group}: {one.name}")]
    return chosen[: options.some or None][index::count]


def spread(differences: Sequence[Any]) -> list[Any]:
    """Return the differences in an order of which each beginning has about the same share of each group.

    It takes the members of a group in the order of their numbers' bits, read backwards: 0, 4, 2, 6, 1, 5, 3.
    """
    groups: dict[str, list[Any]] = {}
    for one in differences:
        groups.setdefault(one.group, []).append(one)
    placed = []
    for members in groups.values():
        bits = len(members).bit_length()
        order = sorted(range(len(members)), key=lambda number: f"{number:0{bits}b}"[::-1])
        placed += [(place / len(members), members[number]) for place, number in enumerate(order)]
    return [one for _, one in sorted(placed, key=lambda item: item[0])]


if __name__ == "__main__":
    main()
