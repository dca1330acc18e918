"""Gives Helion the configurations of an entry where it looks into its own cache, and records what it finds by
searching.

Helion's cache asks itself for the path of a key's file, and reads the configuration there. For the length of
such a look-up it gets the path of a record that a verified revision installed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hooks import counters, imports
from ...wire.errors import printable
from ..look_ups import LookUps
from .rules import FOLDER, key_of

if TYPE_CHECKING:
    from .made import Made

_NO_LOOK_UP = "it did not look into its cache"


class Configurations(LookUps):
    """The configurations of this process: which may be taken, which were taken and which were found."""

    def __init__(self) -> None:
        super().__init__("Helion", "configuration")
        self.taken: set[str] = set()
        """Paths, below the kind's folder, of the records whose configuration Helion took."""
        self.found: dict[str, bytes] = {}
        """Records of the configurations that this process found by searching, by their path."""
        self._accepted: dict[str, list[tuple[Path, str]]] = {}
        """Helion's key -> the roots and paths of the records that may be taken."""
        self._anew = False
        # ``self._call`` has, beside ``reason``, ``file``: the record that Helion reads, and ``searched``: the
        # kernel of the last search. Neither is there before a call.

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow the records among these files to be taken."""
        for path in sorted(paths):
            if key := key_of(path):
                records = self._accepted.setdefault(key, [])
                if (root, path) not in records:
                    records.append((root, path))

    @property
    def allowed(self) -> list[Path]:
        """Return the files whose configurations Helion may take."""
        return [root / path for records in list(self._accepted.values()) for root, path in records]

    def refuse_all(self) -> None:
        """Allow none of the records that were accepted so far."""
        self._accepted.clear()

    def forget(self, paths: Collection[str]) -> None:
        """Treat the records of these paths as never used, and allow them no more."""
        for key, records in list(self._accepted.items()):
            self._accepted[key] = [record for record in records if record[1] not in paths]
        self.taken.difference_update(paths)
        for path in paths:
            self.found.pop(path, None)

    def search_anew(self) -> None:
        """Have Helion search where it would take a configuration from its own folder, since nobody knows how
        that was found."""
        self._anew = True

    def write_found(self, root: Path, *, left: bool) -> set[str]:
        """Write the records of what was found below ``root``, each whole, unless the process has *left* that.
        Return their paths. Raises ``OSError``."""
        from ...atomic import replacing

        for path, data in ({} if left else dict(self.found)).items():
            file = root / path
            if not file.is_file() or file.read_bytes() != data:
                file.parent.mkdir(parents=True, exist_ok=True)
                with replacing(file) as out:
                    out.write(data)
        return set() if left else set(self.found)

    # Hooks ------------------------------------------------------------------------------------

    def look_up(self, before_compile: Callable[[], None], call: imports.Call) -> Any:
        """Run in the place of ``LocalAutotuneCache.get``; any doubt falls through to the original."""
        self._call.reason = ""
        before_compile()
        cache = call.args[0]
        record = self._timed(lambda: self._fitting(cache))
        if record is None:
            return None if self._anew else call()
        root, path = record
        with self._in_place(root / path):
            configuration = call()
        if configuration is not None:
            self.taken.add(path)
            return configuration
        self._call.reason = "Helion did not take the configuration of the entry"
        self.forget({path})
        return call.original(*call.args, **call.kwargs)

    def path_of(self, call: imports.Call) -> Any:
        """Run in the place of ``LocalAutotuneCache._get_local_cache_path``."""
        file = getattr(self._call, "file", None)
        return call() if file is None else file

    def put(self, call: imports.Call) -> Any:
        """Run in the place of ``LocalAutotuneCache.put``. Helion also puts there what a remote cache of its
        own answered: only what this process found by searching is recorded."""
        answer = call()
        cache = call.args[0]
        if getattr(self._call, "searched", None) is cache.kernel:
            self._call.searched = None
            self._timed(lambda: self._record(cache, call.argument("config")))
        return answer

    def search(self, call: imports.Call) -> Any:
        """Run in the place of ``BaseSearch.autotune``, which times configurations."""
        reason = getattr(self._call, "reason", "") or _NO_LOOK_UP
        self._call.reason = ""
        self._note(f"Helion searched for a configuration of {_name(call)}: {reason}")
        answer = counters.counter_of("helion.searches")(call)
        self._call.searched = getattr(call.args[0], "kernel", None)
        return answer

    # Look-ups and records ---------------------------------------------------------------------

    def _fitting(self, cache: Any) -> tuple[Path, str] | None:
        """Return an accepted record that fits, and keep the reason if there is none."""
        from .made import Made, check_kernel, code_of, facts_of, search_of

        self._call.reason = "no restored entry has one for this kernel and these arguments"
        records = self._accepted.get(cache.key.stable_hash(), ())
        if not records:
            return None
        check_kernel(cache)
        facts, search = facts_of(cache.kernel), search_of(cache.kernel.settings)
        for root, path in list(records):
            made = Made.decode((root / path).read_bytes())
            self._call.reason = made.difference(facts, search)
            if not self._call.reason:
                if code_of(cache.kernel, _configuration(made)) == made.code:
                    return root, path
                self._call.reason = "Helion generates other code for the configuration of the entry"
        return None

    def _record(self, cache: Any, configuration: Any) -> None:
        """Record what Helion found, from the memory of this process: others may write in Helion's folder."""
        from ...wire.digest import Digest
        from .made import Made, check_kernel, code_of, facts_of, search_of

        check_kernel(cache)
        kernel, key = cache.kernel, cache.key.stable_hash()
        code = code_of(kernel, configuration)
        made = Made(configuration.to_json(), code, facts_of(kernel), search_of(kernel.settings))
        data = made.encode()
        path = f"{FOLDER}/{key}/{Digest.of(data).hex[:16]}.json"
        if key_of(path):
            self.found[path] = data

    @contextmanager
    def _in_place(self, file: Path) -> Iterator[None]:
        """Have Helion read ``file`` on this thread."""
        self._call.file = file
        try:
            yield
        finally:
            self._call.file = None


def _configuration(made: Made) -> Any:
    """Return Helion's object of a configuration, as its own look-up makes it."""
    import sys

    return sys.modules["helion.runtime.config"].Config.from_json(made.config)


def _name(call: imports.Call) -> str:
    """Return the name of the kernel that a search is for, safe to print."""
    kernel = getattr(getattr(call.args[0], "kernel", None), "kernel", None)
    return printable(str(getattr(kernel, "name", "a kernel")))[:100]
