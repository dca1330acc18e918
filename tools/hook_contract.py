"""Compares the private names that cachesvc wraps with the sources of torch, Triton, vLLM, TileLang,
FlashInfer and Helion.

`tools/hook_contract.json` has, for each release, what each name is: its parameters and their defaults. Its
rows are those of the hooks; this module adds which parameters a wrapper reads, and how callbacks are called.

    python -m tools.hook_contract check PLACE...     is the table right for these? status 1 if not
    python -m tools.hook_contract compare PLACE      what does this release change? and the draft of its rows
    python -m tools.hook_contract record PLACE...    write these releases into the table

PLACE is a wheel, or a folder of installed packages. Nothing is imported from it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachesvc.warm import triton_bundler
from cachesvc_client.hooks.table import Hook
from cachesvc_client.kinds import own_kinds
from cachesvc_client.kinds.frames.arguments import NAMES as FRAME_PARAMETERS
from cachesvc_client.kinds.inductor.versions import HOST_KERNEL_PARAMETERS
from cachesvc_client.kinds.torch_extensions.versions import PARAMETERS
from cachesvc_client.process.every_hook import every_hook
from tools.private_names import MISSING, Sources

TABLE = Path(__file__).with_suffix(".json")
PACKAGES = ("torch", "triton", "vllm", "tilelang", "flashinfer", "helion")

_CACHE = "torch._functorch._aot_autograd.autograd_cache"
_AUTOTUNER = "torch._inductor.runtime.triton_heuristics.CachingAutotuner"
_BUILD = "triton.runtime.build"
_KERNEL_CACHE = "tilelang.cache.kernel_cache.KernelCache"
READS: Mapping[str, Sequence[str]] = {
    "torch._dynamo.convert_frame._compile": FRAME_PARAMETERS,
    "torch._dynamo.output_graph.OutputGraph.install_global_by_id": ("self", "prefix", "value"),
    "torch._inductor.compile_fx.compile_fx": ("model_", "example_inputs_"),
    "torch._inductor.codecache.FxGraphHashDetails.__init__": ("self", "gm"),
    f"{_CACHE}.AOTAutogradCacheDetails.__init__": ("self", "gm"),
    "torch._inductor.codecache.FxGraphCache.load_with_key": ("key", "debug_lines"),
    "torch._inductor.codecache.FxGraphCache._lookup_graph": ("key",),
    f"{_CACHE}.AOTAutogradCache._lookup": ("key",),
    f"{_CACHE}._get_debug_lines_for_cache_key": ("pickler", "details", "key"),
    "torch.compiler._cache.CacheArtifactManager.record_artifact": ("artifact_type", "key", "content"),
    "torch.library.Library.impl": ("op_name", "fn", "dispatch_key"),
    f"{_AUTOTUNER}.recheck_autotune_cache": ("self", "reload_kernel_from_src"),
    "torch._inductor.triton_bundler.TritonBundler.read_and_emit": ("bundle",),
    "torch._inductor.compile_worker.subproc_pool.SubprocPool.submit": ("job_fn",),
    f"{_BUILD}.compile_module_from_src": ("src", "name"),
    f"{_BUILD}._compile_so": ("src", "src_path", "name", "load_module", "language"),
    "torch.utils.cpp_extension._run_ninja_build": ("build_directory",),
    "vllm.compilation.decorators._try_load_aot_compiled_fn": ("model", "aot_compilation_path"),
    "vllm.v1.worker.worker_base.WorkerWrapperBase.init_worker": ("self", "all_kwargs"),
    f"{_KERNEL_CACHE}._load_kernel_from_disk": ("key", "backend_context", "pass_configs", "compile_flags"),
    f"{_KERNEL_CACHE}._get_cache_path": ("key",),
    f"{_KERNEL_CACHE}._save_kernel_to_disk": ("key", "kernel"),
    f"{_KERNEL_CACHE}._write_manifest": ("cache_path",),
    "tilelang.jit.kernel.JITKernel._compile_and_create_adapter": ("self", "tilelang_func"),
    "tilelang.contrib.nvcc.compile_cuda": ("code",),
    "flashinfer.jit.core.JitSpec.build_and_load": ("self",),
    "flashinfer.jit.core.run_ninja": ("workdir",),
    "helion.autotuner.local_cache.LocalAutotuneCache.get": ("self",),
    "helion.autotuner.local_cache.LocalAutotuneCache.put": ("self", "config"),
    "helion.autotuner.base_search.BaseSearch.autotune": ("self",),
}
"""Name -> the parameters that its wrapper reads. A release without one of them needs another wrapper."""
EVERY_PARAMETER: Mapping[str, frozenset[str]] = {
    "torch._inductor.codecache.CppCodeCache.load_async": frozenset(HOST_KERNEL_PARAMETERS),
    "torch.utils.cpp_extension._jit_compile": PARAMETERS,
}
"""Name -> the parameters that its wrapper knows. With another parameter the wrapper makes no key."""
CALLS = (
    ("torch._dynamo.callback", "CompilationCallbackHandler.run_start_callbacks", "callback"),
    ("torch._dynamo.callback", "CompilationCallbackHandler.run_end_callbacks", "callback"),
    ("triton.compiler.compiler", "compile", "compilation_listener"),
    ("triton.runtime.jit", "JITFunction._call_hook", "hook"),
)
"""Calls of callbacks that cachesvc registers: module, function, and the variable that it calls."""


@dataclass(frozen=True, slots=True)
class Row:
    """One name of the table: a hook, or the call of a callback where ``called`` is set.

    ``hooks``: the rows of the hooks on that name, none for a call.
    """

    module: str
    path: str
    hooks: tuple[Hook, ...] = ()
    called: str = ""

    @property
    def name(self) -> str:
        """Return the name by which the table, and a reader, knows the row."""
        full = f"{self.module}.{self.path}".rstrip(".")
        return f"{full} calls {self.called}" if self.called else full

    @property
    def package(self) -> str:
        """Return the package that has the name."""
        return self.module.partition(".")[0]

    def describe(self, sources: Sources) -> str:
        """Return what the name is in these sources."""
        if self.called:
            return sources.describe_call(self.module, self.path, self.called)
        return sources.describe(self.module, self.path)

    def meaning(self) -> str:
        """Return what cachesvc does there, and what is lost without it."""
        if self.called:
            return "calls a callback of cachesvc's, which takes any arguments"
        texts = [
            hook.purpose + (f"; without it: {hook.if_missing}" if hook.if_missing else "")
            for hook in self.hooks
        ]
        return " / ".join(dict.fromkeys(texts))

    def complaints(self, release: str, form: str) -> Iterator[str]:
        """Yield why cachesvc's wrapper does not do its work on a name of this form."""
        if is_there(form):
            names = parameter_names(form)
            for parameter in READS.get(self.name, ()):
                if parameter not in names:
                    yield f"{self.name} has no parameter {parameter}, which the wrapper reads"
            known = EVERY_PARAMETER.get(self.name)
            for parameter in sorted(names - known - {"cls", "self"}) if known is not None else ():
                yield f"{self.name} has a parameter {parameter}, for which the wrapper makes no key"
        elif not self.hooks or any(hook.expected_in(release) for hook in self.hooks):
            yield f"{self.name} is {form}"


def rows() -> list[Row]:
    """Return all rows, each name once, in the order of the hooks."""
    by_place: dict[tuple[str, str], list[Hook]] = {}
    for hook in (*every_hook(own_kinds()), *triton_bundler.HOOKS):
        by_place.setdefault((hook.module, hook.path), []).append(hook)
    hooks = [Row(module, path, tuple(dict.fromkeys(found))) for (module, path), found in by_place.items()]
    return [*hooks, *(Row(module, function, called=called) for module, function, called in CALLS)]


class Table:
    """What each name is in each release, as `TABLE` has it. A file has a form where it changes."""

    def __init__(self, releases: dict[str, list[str]], forms: dict[str, dict[str, str]]) -> None:
        self.releases, self._forms = releases, forms

    @classmethod
    def read(cls, path: Path = TABLE) -> Table:
        """Read the table; an empty one if there is no file. Raises ``ValueError`` if it is no table."""
        if not path.exists():
            return cls({package: [] for package in PACKAGES}, {})
        data: dict[str, Any] = json.loads(path.read_text())
        table = cls({package: data["releases"].get(package, []) for package in PACKAGES}, {})
        for row in data["names"]:
            package = row["name"].partition(".")[0]
            form = MISSING
            for release in table.releases[package]:
                form = row["forms"].get(release, form)
                table._forms.setdefault(row["name"], {})[release] = form
        return table

    def write(self, path: Path = TABLE) -> None:
        """Write the table, with the meaning of each row."""
        names = []
        for row in rows():
            changes, before = {}, MISSING
            for release in self.releases[row.package]:
                form = self.form(row, release)
                if form != before:
                    changes[release] = form
                before = form
            names.append(draft(row, changes))
        path.write_text(json.dumps({"releases": self.releases, "names": names}, indent=1) + "\n")

    def form(self, row: Row, release: str) -> str:
        """Return what the name is in a release of the table."""
        return self._forms.get(row.name, {}).get(release, MISSING)

    def nearest(self, package: str, version: str) -> str | None:
        """Return the release of the table with the same first two numbers; ``None`` if there is none."""
        return next((known for known in self.releases[package] if _minor(known) == _minor(version)), None)

    def newest(self, package: str) -> str | None:
        """Return the newest release of a package."""
        return max(self.releases[package], key=_minor, default=None)

    def record(self, sources: Sources) -> list[str]:
        """Write what these sources are into the table; return the releases, such as ``torch 2.13.0``."""
        recorded = []
        for package, version in _versions(sources):
            known = self.nearest(package, version)
            self.releases[package] = sorted(
                {*self.releases[package], version} - ({known} - {version}), key=_minor
            )
            recorded.append(f"{package} {version}")
            for row in _rows_of(package):
                self._forms.setdefault(row.name, {})[version] = row.describe(sources)
        return recorded


def draft(row: Row, forms: Mapping[str, str]) -> dict[str, Any]:
    """Return a row as the table's file has it; ``forms``: what the name is, by release."""
    reads = sorted({*READS.get(row.name, ()), *EVERY_PARAMETER.get(row.name, ())})
    return {
        "name": row.name,
        "meaning": row.meaning(),
        **({"reads": reads} if reads else {}),
        "forms": dict(forms),
    }


def check(sources: Sources, table: Table) -> list[str]:
    """Return a line for each name that is not as the table says, or whose wrapper does not fit."""
    lines = []
    for package, version in _versions(sources):
        release = table.nearest(package, version)
        if release is None:
            lines.append(f"{package} {version} is not in the table: make versions-new VERSION={version}")
            continue
        for row in _rows_of(package):
            form, known = row.describe(sources), table.form(row, release)
            if form != known:
                lines.append(f"{package} {version}: {row.name} is {form}; the table has {known}")
            lines += [f"{package} {version}: {line}" for line in row.complaints(_release(version), form)]
    return lines


def compare(sources: Sources, table: Table) -> list[str]:
    """Return lines on what a release changes against the newest one of the table, with the drafted rows."""
    lines = []
    for package, version in _versions(sources):
        base = table.newest(package)
        changed = [
            (row, table.form(row, base) if base else MISSING, row.describe(sources))
            for row in _rows_of(package)
        ]
        changed = [(row, before, now) for row, before, now in changed if before != now]
        lines.append(
            f"{package} {version} against {base}: {len(changed)} of {len(_rows_of(package))} names changed"
        )
        for row, before, now in changed:
            lines += [f"{_change(before, now)}: {row.name}", f"    before: {before}", f"    now:    {now}"]
            lines.append(f"    cachesvc {row.meaning()}")
            complaints = [*row.complaints(_release(version), now)]
            lines += [f"    FIX: {line}" for line in complaints]
            if not complaints:
                lines.append("    The wrapper reads nothing that changed.")
        if changed:
            lines.append("Draft of the rows (make contract ARGS=record writes them):")
            lines += [json.dumps(draft(row, {version: now})) for row, _, now in changed]
    return lines


def _change(before: str, now: str) -> str:
    """Name the kind of a change."""
    if now == MISSING:
        return "gone"
    if now.startswith("inherited from"):
        return "moved to a base class"
    if now.startswith("imported from"):
        return "moved to another module"
    if not is_there(before):
        return "new"
    old, new = parameter_names(before), parameter_names(now)
    if added := sorted(new - old):
        return f"new parameter {', '.join(added)}"
    if gone := sorted(old - new):
        return f"parameter gone {', '.join(gone)}"
    return "another default, order or kind"


def is_there(form: str) -> bool:
    """Return whether a hook finds a name of this form where it looks."""
    return form != MISSING and not form.startswith("inherited from")


def parameter_names(form: str) -> frozenset[str]:
    """Return the names of a form's parameters; none if it is no function."""
    import ast

    _, opening, parameters = form.partition("(")
    if not opening or form.startswith(("class ", "value ", "module")):
        return frozenset()
    try:
        tree = ast.parse(f"def f({parameters}: ...")
    except SyntaxError:  # the form of a call
        return frozenset()
    return frozenset(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))


def _rows_of(package: str) -> list[Row]:
    return [row for row in rows() if row.package == package]


def _versions(sources: Sources) -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        version = sources.version(package)
        if version is not None:
            yield package, version


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="hook_contract", description="the private names that cachesvc wraps"
    )
    parser.add_argument("command", choices=("check", "compare", "record"))
    parser.add_argument("place", nargs="*", type=Path, help="wheels, or folders of installed packages")
    options = parser.parse_args(arguments)
    table = Table.read()
    failed = False
    for sources in _open(options.place):
        if options.command == "record":
            print("recorded", ", ".join(table.record(sources)))
            continue
        lines = check(sources, table) if options.command == "check" else compare(sources, table)
        failed |= options.command == "check" and bool(lines)
        versions = ", ".join(map(" ".join, _versions(sources)))
        right = (
            f"{versions}: every name is as the table says"
            if versions
            else "neither torch, Triton, vLLM, TileLang, FlashInfer nor Helion"
        )
        print("\n".join(lines or [f"{sources.place}: {right}"]))
    if options.command == "record":
        table.write()
    return int(failed)


def _open(places: Iterable[Path]) -> Iterator[Sources]:
    for place in places:
        try:
            yield Sources(place)
        except OSError as error:
            raise SystemExit(f"hook_contract: {error}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
