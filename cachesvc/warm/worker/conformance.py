"""Probe whether cachesvc works in this environment, by what its hooks do: the conformance probe.

A torch may have every name that cachesvc hooks and call it in another way [measured: 2.8 had all names, and
two safety features did nothing]. So each check compiles small functions and looks at the effect. That a fresh
process restores an entry and compiles nothing is what the replays of each target show.

The checks run in one process, in the order of ``CHECKS``: a check uses what the checks before it compiled.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from cachesvc_client.config.settings import Config
from cachesvc_client.graphs import keys
from cachesvc_client.hooks import counters
from cachesvc_client.hooks.table import Hook
from cachesvc_client.node.installed import RestoreResult
from cachesvc_client.process.events import Listener
from cachesvc_client.process.every_hook import every_hook
from cachesvc_client.process.process import process
from cachesvc_client.wire.errors import Unsupported

_NAMESPACE = "cachesvc_probe"
"""Namespace of the operator that the probe registers."""


class Probe(Listener):
    """Holds the process that is probed: its operator is registered, its hooks are armed, in this order."""

    def __init__(self) -> None:
        """Raises ``Unsupported`` for a torch that is not usable."""
        import torch

        self._library = _register(torch, power=2)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.state = process()
        self.state.prepare(Config.read(), RestoreResult())
        self.wrap: Callable[[Any], Callable[[Any], Any]] | None = None
        """Returns what is put around the next compiled graph; ``None``: nothing."""
        self.state.events.subscribe(self)
        self.state.arm()
        self.inputs = torch.linspace(-2.0, 2.0, 64, device=self.device).reshape(8, 8)

    def around_graph(self, graph: Any) -> Callable[[Any], Any] | None:
        """Return what is put around the compiled form of a graph."""
        return self.wrap(graph) if self.wrap else None

    def register_again(self, power: int) -> None:
        """Register the operator with another body, while no hook is in place: as another process would do."""
        import torch

        self.state.disarm()
        self._library._destroy()
        self._library = _register(torch, power)
        keys.nonce.cache_clear()  # no two processes have the same
        self.state.arm()

    def run(self, function: Callable[[Any], Any]) -> tuple[Any, Any, set[str], counters.Observation]:
        """Compile a function anew; return its output, eager's, AOTAutograd's keys and what was compiled."""
        import torch

        inputs = self.inputs.bfloat16() if function is _product else self.inputs

        torch._dynamo.reset()
        mark, observer = self.state.all_kinds.mark_uses(), counters.Observer()
        with torch.no_grad():
            expected = function(inputs)
            output = torch.compile(function)(inputs)
        keys_used = {key for key in self.state.all_kinds.keys_since(mark) if key.startswith("a")}
        return output, expected, keys_used, observer.snapshot()


def failures() -> dict[str, str]:
    """Run all checks in this process; return the reason of each that failed, by the name of the check.

    Raises ``Unsupported`` for a torch that is not usable.
    """
    probe = Probe()
    found = {}
    for name, check in CHECKS:
        try:
            reason = check(probe)
        except Unsupported:
            raise
        except Exception as error:  # noqa: BLE001 - a torch whose internals differ fails the check
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        if reason:
            found[name] = reason
    return found


def _counts(probe: Probe) -> str:
    """Check that a compile is counted, and that a second one of the same graph is a hit without work."""
    output, expected, _, first = probe.run(_plain)
    again, _, _, second = probe.run(_plain)
    if not first.torch.graphs_compiled:
        return "a compile was not counted"
    if not (_equal(output, expected) and _equal(again, expected)):
        return "a compiled output differs from eager"
    if not second.clean or not second.torch.aot_hits:
        return "a graph that is in the cache was compiled again"
    return ""


def _canary(probe: Probe) -> str:
    """Check that a canary around a restored graph is called and keeps wrong numbers from the caller."""
    from cachesvc_client.canary.trial import Trial

    called: list[str] = []
    wrong: list[str] = []

    def watch(graph: Any) -> Callable[[Any], Any]:
        trial = Trial(
            graph,
            suspects=lambda: ["probe"],
            wrong=lambda _, reason: wrong.append(reason),
            skipped=wrong.append,
            called=lambda: called.append("called"),
        )
        return lambda compiled: trial.watch(_falsified(compiled))

    probe.wrap = watch
    try:
        output, expected, _, observed = probe.run(_plain)
    finally:
        probe.wrap = None
    if not observed.torch.aot_hits:
        return "no restored graph was there to watch"
    if not called:
        return "the canary was not called"
    return "" if wrong and _equal(output, expected) else "wrong numbers reached the caller"


def _operators(probe: Probe) -> str:
    """Check that another body of an operator that was registered before the attach is no hit."""
    _, _, before, _ = probe.run(_with_operator)
    probe.register_again(power=3)
    output, expected, after, _ = probe.run(_with_operator)
    if not _equal(output, expected):
        return "code of another body was a hit"
    return "" if before and after and not before & after else "the key is the same with another body"


def _partition(
    function: Callable[[Any], Any], *, one: Callable[[], Any], other: Callable[[], Any]
) -> Callable[[Probe], str]:
    """Make the check that code for one setting is no hit under another, in both directions, and that equal
    settings have equal keys."""

    def check(probe: Probe) -> str:
        seen = []
        for setting in (one, other, one):
            with setting():
                output, expected, keys_used, _ = probe.run(function)
            if not _equal(output, expected):
                return "code of another setting was a hit"
            seen.append(keys_used)
        if not all(seen):
            return "no key was seen"
        if seen[0] & seen[1]:
            return "the key is the same under another setting"
        return "" if seen[0] == seen[2] else "equal settings have different keys"

    return check


def _threads_partition(probe: Probe) -> str:
    """Only code for the CPU depends on the number of threads."""
    if probe.device != "cpu":
        return ""
    return _partition(_plain, one=lambda: _threads(0), other=lambda: _threads(1))(probe)


def _captures(probe: Probe) -> str:
    """Check that every file that the compiles left in the cache folders was recorded."""
    recorded = {(file.kind, file.path) for file in probe.state.files.capture(whole=False)}
    left = {(file.kind, file.path) for file in probe.state.files.capture(whole=True)}
    missed = sorted(left - recorded)
    if not left:
        return "the compiles left no file"
    return f"{len(missed)} files were not recorded: {'/'.join(missed[0])}" if missed else ""


def _passes_on(probe: Probe) -> str:
    """Check that each function that is called is hooked, and gets also an argument that no release has today.

    Only modules that the compiles before have imported are checked.
    """
    probe.state.disarm()
    for hook in every_hook():
        module = sys.modules.get(hook.module)
        owner = hook.owner(module) if module is not None and hook.path else None
        if owner is not None and hook.role not in ("speed", "explain"):
            reason = _passes_on_to(probe, hook, owner)
            if reason:
                return reason
    return ""


def _passes_on_to(probe: Probe, hook: Hook, owner: Any) -> str:
    """Put a function that notes its arguments in the place of a hooked one, put the hooks in place, and call
    it. No hook is in place before and after."""
    attribute = hook.path.rpartition(".")[2]
    before = vars(owner).get(attribute)
    kind = type(before) if isinstance(before, (staticmethod, classmethod)) else None
    if not isinstance(getattr(before, "__func__", before), FunctionType):
        return ""
    calls: list[Any] = []

    def note(*args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))

    setattr(owner, attribute, kind(note) if kind else note)
    try:
        probe.state.arm()
        hooked = vars(owner)[attribute]
        hooked = getattr(hooked, "__func__", hooked)
        if hooked is note:
            return f"hook {hook.name} is not in place"
        hooked("one", cachesvc_more=1)
    finally:
        probe.state.disarm()
        setattr(owner, attribute, before)
    return "" if calls == [(("one",), {"cachesvc_more": 1})] else f"{hook.name} did not get its arguments"


def _register(torch: Any, power: int) -> Any:
    """Register the operator. Its body has matrix products alone, for which no kernel is built."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    library.define("power(Tensor x) -> Tensor")
    library.impl("power", lambda x: torch.linalg.multi_dot([x] * power), "CompositeImplicitAutograd")
    return library


def _plain(x: Any) -> Any:
    """Compute what depends on the default dtype."""
    import torch

    return torch.sin(x) + torch.full((8,), 1.5, device=x.device)


def _product(x: Any) -> Any:
    """Compute what depends on autocast. Of bfloat16 inputs under the same autocast no kernel is built."""
    return x @ x


def _with_operator(x: Any) -> Any:
    import torch

    return torch.ops.cachesvc_probe.power(x)


def _falsified(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return a restored function with wrong numbers, and with the marks that Dynamo left on it."""

    @functools.wraps(compiled)
    def wrong(*args: Any) -> Any:
        return [item + 1 for item in compiled(*args)]

    return wrong


def _equal(output: Any, expected: Any) -> bool:
    import torch

    if output.dtype != expected.dtype:
        return False
    return bool(torch.allclose(output, expected, rtol=1e-2, atol=1e-3))


@contextlib.contextmanager
def _default_dtype(name: str) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _autocast(name: str) -> Iterator[None]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.autocast(device, dtype=getattr(torch, name)):
        yield


@contextlib.contextmanager
def _threads(more: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before + more)
    try:
        yield
    finally:
        torch.set_num_threads(before)


CHECKS: tuple[tuple[str, Callable[[Probe], str]], ...] = (
    ("compiles are counted", _counts),
    ("the canary is called", _canary),
    (
        "the default dtype is in the key",
        _partition(_plain, one=lambda: _default_dtype("float32"), other=lambda: _default_dtype("float64")),
    ),
    (
        "the dtype of autocast is in the key",
        _partition(_product, one=lambda: _autocast("bfloat16"), other=lambda: _autocast("float16")),
    ),
    ("the number of threads is in the key", _threads_partition),
    ("the code of operators is in the key", _operators),
    ("every file is captured", _captures),
    ("hooks pass arguments on", _passes_on),
)
"""The checks by name, in the order in which they run."""
