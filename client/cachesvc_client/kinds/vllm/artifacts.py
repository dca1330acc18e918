"""Gives vLLM the artifacts of an entry in the place of those in its own folder, and records what vLLM wrote.

vLLM looks an artifact up by the exact name of its folder, and unpickles it before it checks anything. So it
gets the path of a file that a verified revision installed, or its own path. Run on vLLM 0.32.0.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hooks import imports
from ..kind import ProcessCallbacks
from .rules import RULES, inside_of_torch_compile_cache, is_artifact

if TYPE_CHECKING:
    from ...wire.digest import Digest

_log = logging.getLogger("cachesvc")
_MOST_REASONS = 8
_SAVE = "save_aot_compiled_function"
"""The method of a compiled model with which vLLM writes its artifact (0.26 to 0.32)."""

Signature = tuple[int, int, int]
"""Inode, time of change and size of a file."""


class Artifacts:
    """The artifacts that this process may load, those that it loaded, and those that vLLM wrote."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        """Paths, below the kind's folder, of the accepted files that vLLM loaded."""
        self.reasons: list[str] = []
        """Why an accepted file was not used, in words for the user."""
        self.seconds = 0.0
        """Seconds that names and look-ups took, without vLLM's own work."""
        self._accepted: dict[str, Path] = {}
        self._before: dict[str, tuple[Path, Signature | None]] = {}
        """For each path below the kind's folder: vLLM's own file, and what it was before vLLM may write
        it."""
        self._saved: dict[Path, Digest] = {}
        """The files of vLLM's own that this process wrote, with their content at that time."""

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow vLLM to load these files, which a verified revision has installed in ``root``."""
        artifacts = (path for path in paths if is_artifact(path) and RULES.rule(path) is not None)
        self._accepted.update((path, root / path) for path in artifacts)

    def refuse(self, paths: Collection[str] | None = None) -> None:
        """Allow none of these files any more, or none at all, and treat them as never used."""
        for path in list(self._accepted if paths is None else paths):
            self._accepted.pop(path, None)
            self.loaded.discard(path)
            self._before.pop(path, None)

    @property
    def allowed(self) -> list[Path]:
        """Return the files that vLLM may load."""
        return list(self._accepted.values())

    def written(self) -> dict[str, Path]:
        """Return the files that vLLM wrote in this process: path below the kind's folder -> vLLM's file."""
        return {
            path: own
            for path, (own, before) in list(self._before.items())
            if RULES.rule(path) is not None and _signature(own) not in (None, before)
        }

    def made(self) -> dict[str, Digest]:
        """Return the content that vLLM wrote in this process, by path below the kind's folder. Processes of
        one user share vLLM's folder: what another one wrote there is not of this process."""
        written = self.written().items()
        return {path: digest for path, own in written if (digest := self._saved.get(own)) is not None}

    def _watch_save(self, model: Any) -> None:
        """Keep the content of the artifact when vLLM writes it for a model, for `made`."""
        owner = next((one for one in type(model).__mro__ if _SAVE in vars(one)), None)
        if owner is not None:
            imports.hook(owner, _SAVE, self._save)

    def _save(self, call: imports.Call) -> Any:
        """Run in the place of ``save_aot_compiled_function(self)``."""
        from ...wire.digest import Digest

        model = call.args[0]
        own = Path(os.fspath(model._aot_compilation_path or ""))
        before = _signature(own)
        answer = call()
        if _signature(own) not in (None, before):
            self._saved[own] = Digest.of(own.read_bytes())
        return answer

    def load_model(self, callbacks: ProcessCallbacks, call: imports.Call) -> Any:
        """Run in the place of ``_try_load_aot_compiled_fn(model, aot_compilation_path)``."""
        callbacks.before_compile()
        begin = time.perf_counter()
        callbacks.files.point_compilers()
        own = Path(os.fspath(call.argument("aot_compilation_path")))
        path = self._path(str(own), call.argument("model").vllm_config)
        accepted = self._accepted.get(path)
        self._before.setdefault(path, (own, _signature(own)))
        self._watch_save(call.argument("model"))
        self.seconds += time.perf_counter() - begin
        if accepted is None or not accepted.is_file():
            self._note_other(path, call.argument("model").vllm_config)
            return call()
        call.set_argument("aot_compilation_path", str(accepted))
        loads = _loads_counted()
        with (
            _reasons_of("vllm.compilation.decorators") as reasons,
            callbacks.files.loading(RULES.name, path),
        ):
            loaded = call()
        if loaded is not None and _loads_counted() != loads:
            self.loaded.add(path)
        else:
            self._note(f"vLLM did not load the artifact of the entry: {_said(reasons, accepted)}")
        return loaded

    def _path(self, own: str, config: Any) -> str:
        """Return the place below the kind's folder for a path of vLLM's. Raises for one that has none."""
        from .identity import identity

        inside = inside_of_torch_compile_cache(own)
        if not inside:
            raise ValueError(f"{own} is no path of vLLM's cache folder")
        return f"{identity(config)}/{inside}"

    def _note_other(self, path: str, config: Any) -> None:
        """Note why none of the accepted files is the one at ``path``, if there are any."""
        if self._accepted:
            ranks = getattr(getattr(config, "parallel_config", None), "world_size", None)
            difference = _difference(path, self._accepted, ranks)
            self._note(f"no artifact of the entry is for this engine: {difference}")

    def _note(self, reason: str) -> None:
        if reason not in self.reasons and len(self.reasons) < _MOST_REASONS:
            self.reasons.append(reason)
        _log.debug("%s", reason)


def _difference(path: str, accepted: Collection[str], ranks: int | None) -> str:
    """Return in words how a path differs from the accepted ones, by the names of its folders.

    ``ranks``: the number of ranks of this engine; ``None`` if it is not known."""
    rest = path.partition("/")[2]
    others = [other.partition("/") for other in accepted]
    if any(other == rest for _, _, other in others):
        return "settings differ that vLLM's hash leaves out (docs/engines/vllm.md)"
    folder = rest.rpartition("/rank_")[0]
    built = sorted(set(Counter(other.rpartition("/rank_")[0] for other in accepted).values()))
    if ranks is not None and built and ranks not in built:
        count = f"{' or '.join(map(str, built))} rank{'' if built == [1] else 's'}"
        return f"it was built for {count}, and this engine has {ranks}"
    if any(other.startswith(folder + "/") for _, _, other in others):
        return "it was built for other ranks"
    return "vLLM's own hash of its configuration, its variables and its sources is another"


def _signature(path: Path) -> Signature | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _loads_counted() -> int:
    """Return vLLM's own count of artifacts that it loaded."""
    from vllm.compilation.counter import compilation_counter

    return int(compilation_counter.num_aot_artifacts_loaded)


class _Listener(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of a record."""
        self.texts.append(record.getMessage())


@contextmanager
def _reasons_of(name: str) -> Iterator[list[str]]:
    """Keep the warnings of a logger for the length of a block: vLLM says there why it does not load."""
    logger, listener = logging.getLogger(name), _Listener()
    logger.addHandler(listener)
    try:
        yield listener.texts
    finally:
        logger.removeHandler(listener)


def _said(texts: list[str], path: Path) -> str:
    """Return vLLM's words about a load that failed, without the path, and safe to print."""
    from ...wire.errors import printable

    text = next((text for text in reversed(texts) if "reason:" in text), "it gave no reason")
    return printable(text.rpartition("reason:")[2].strip().replace(str(path), path.name))[:300]
