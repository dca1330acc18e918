"""Owns `ProcessOutput`: what this process compiled and used, for those who publish it or report about it.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graphs import key_components, operators
from ..hooks import counters
from ..kinds import KINDS

if TYPE_CHECKING:
    from ..graphs.request import GraphRequests
    from ..node.installed import InstalledRevision
    from ..wire.digest import Digest
    from ..wire.factors import Facts, Fingerprint
    from ..wire.manifest.key_components import KeyFacts
    from ..wire.names import Name
    from ..wire.requests.reports import KindWork
    from .folders import ProcessFolders
    from .kinds import AllKinds

_log = logging.getLogger("cachesvc")


class ProcessOutput:
    """The records of the hooks, and the facts that follow from them."""

    def __init__(self, process: ProcessFolders, all_kinds: AllKinds) -> None:
        self._process, self._all_kinds = process, all_kinds
        self.components = key_components.Recorder()
        self.registered_functions = operators.RegisteredFunctions()
        self.observer: counters.Observer | None = None
        """Counts what the compilers do; ``None`` before the hooks were armed."""
        self.models: list[Digest] = []
        """Hashes of the models that `cachesvc_client.compile` was called with."""
        self.compiled_before = _graphs_compiled_already()
        """How many graphs were compiled before this object was made, unseen by the hooks."""
        self.seconds = {"wait": 0.0, "compile": 0.0}
        """Seconds that compiles waited for restores, and seconds inside Inductor."""
        self.wrong_numbers = 0
        """How many different lines about wrong numbers the canary has."""
        self.off = ""
        """The setting that kept a compiler from its own cache at the first compile where one did."""
        self.compiled_in: Counter[str] = Counter()
        """How many graphs were compiled in folders that the program had chosen since attach, by
        `Folders.left`."""
        self.publications: Counter[tuple[Name, str]] = Counter()
        """How often this process has published, as a rank of a job, by name and by occasion with target."""

    @functools.cached_property
    def asked(self) -> GraphRequests:
        """Return the requests for compiles that this process made; the first use makes the object."""
        from ..graphs.request import GraphRequests

        return GraphRequests(self.registered_functions)

    def elsewhere(self) -> str:
        """Return in which folders that are not cachesvc's this process compiled; empty if in none."""
        from ..wire.errors import printable
        from ..wire.text import count_text

        if aside := self._process.folders.aside:
            return (
                f"PyTorch went on in its own folder, because {printable(aside)}: nothing "
                "restored lies there, and nothing that is compiled there is published"
            )
        if not self.compiled_in:
            return ""
        graphs = count_text(sum(self.compiled_in.values()), "graph")
        settings = ", ".join(printable(words) for words in list(self.compiled_in)[:3])
        return (
            f"{graphs} compiled in a folder that the program chose after attach ({settings}): nothing "
            "restored lies there, and nothing that is compiled there is published; name it before attach"
        )

    def lost(self, installed: Sequence[InstalledRevision]) -> tuple[str, ...]:
        """Return in words which files of revisions that were installed here are gone or damaged."""
        from .lost_files import lost_files

        every_roots, kinds = self._process.folders.every_roots(), self._process.kinds
        absent = set().union(*(state.keys.absent() for state in kinds.values()))

        def made() -> set[tuple[str, str]]:
            places = ((name, root) for roots in every_roots for name, root in roots.items())
            return {(name, path) for name, root in places for path in kinds[name].made_files(root)}

        return tuple(lost_files(installed, every_roots, absent, made))

    def hook_seconds(self) -> float:
        """Return the seconds that cachesvc's own hooks took."""
        return self.asked.seconds + sum(state.activity().seconds for state in self._process.kinds.values())

    def other_isa(self) -> str | None:
        """Return the CPU's instruction set that Inductor picks now, if this process restores for another."""
        from ..environment.cpu import other_isa

        fact = (self._process.fingerprint or {}).get("cpu_isa")
        return other_isa(None if fact is None else str(fact)) or None

    def switched_off(self) -> str:
        """Return the setting that keeps a compiler from its own cache in this process, or kept it at a
        compile, whose thread may have other settings; else an empty text."""
        return self.off or self.off_now()

    def off_now(self) -> str:
        return next(filter(None, (state.switched_off() for state in self._process.kinds.values())), "")

    def work_by_kind(self, observed: counters.Observation) -> dict[str, KindWork]:
        """Return what each kind cost, for the kinds that something is counted for."""
        seconds = self.seconds["compile"]
        costs = ((kind.name, kind.cost(observed, seconds)) for kind in KINDS)
        return {name: cost for name, cost in costs if cost is not None}

    def key_facts(self) -> KeyFacts | None:
        """Return the components of the keys that this process compiled for, as a bundle records them."""
        return self.components.facts(self._all_kinds.used_keys())

    def scopes(self) -> tuple[str, ...]:
        """Return what the code of this process is bound to.

        That is the GPU if CUDA was used, else the CPU of the host; and both where host kernels were built or
        loaded beside CUDA.
        """
        torch = sys.modules.get("torch")
        cuda = bool(torch is not None and torch.cuda.is_initialized())
        host = any(state.has_host_code() for state in self._process.kinds.values()) or not cuda
        return (("gpu",) if cuda else ()) + (("host",) if host else ())

    def beyond_level(self) -> str:
        """Return why what this process has may use other instructions than its level has; an empty text if
        it is known to use none."""
        from ..environment.march import for_level, host_flags

        flags = host_flags(for_level(self._process.fingerprint or {}))
        if why := self._process.ledger.beyond(flags):
            return why
        for number, roots in enumerate(self._process.folders.every_roots()):
            for name, root in roots.items():
                try:
                    why = self._process.kinds[name].beyond(root, flags, left=number > 0)
                except OSError as error:
                    why = f"its files cannot be read: {error}"
                if why:
                    return f"{name}: {why}"
        return ""

    def built_for(self, fingerprint: Fingerprint) -> Fingerprint:
        """Return the fingerprint of an entry that holds what this process has, whose environment is
        ``fingerprint``: that of its level, if all is known to be built for it, else this one."""
        from ..environment.march import for_level

        level = for_level(fingerprint)
        return fingerprint if level is fingerprint or self.beyond_level() else level

    def here(self) -> Facts:
        """Return the facts of this process by the factor table.

        They are those of the present environment, and of the graphs that were compiled here; of all graphs,
        if none was compiled.
        """
        from ..environment.detect import detect

        model = {"model": str(self.models[0])} if self.models else {}
        return {**detect(), **self.asked.facts(missed=True), **model}

    def activity(self) -> object:
        """Return a value that changes while this process compiles or loads; ``None`` before it did either."""
        observed = self.observer.snapshot() if self.observer else counters.Observation()
        of_kinds = [state.activity() for state in self._process.kinds.values()]
        opened = any(activity.opened for activity in of_kinds)
        if not self.seconds["compile"] and observed.clean and not opened:
            return None
        return observed, dict(self.seconds), [one.mark for one in of_kinds], self.wrong_numbers


def _graphs_compiled_already() -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    return int(getattr(utils, "counters", {}).get("stats", {}).get("unique_graphs", 0))
