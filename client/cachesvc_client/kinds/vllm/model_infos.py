"""Gives vLLM its description of a model's class from an entry, where its own folder has none.

Before an engine starts, vLLM asks what the model's class can do. Without a description in
``VLLM_CACHE_ROOT/modelinfos`` it imports the class in another process, which takes as long as an import of
vLLM and torch. The description is JSON, and vLLM compares the digest of the class's source in it. Read in
vLLM 0.26.0 and 0.32.0. Imported by processes of vLLM alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ...hooks import imports
from ..kind import ProcessCallbacks
from .identity import plugins
from .rules import MODEL_INFOS, RULES, is_artifact

_MOST_BYTES = 64 << 10
"""Size of the largest description that is read. One has about 1 kB."""


class ModelInfos:
    """The descriptions that vLLM may read in this process, and the classes that it loaded."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        """Paths, below the kind's folder, of the accepted descriptions that vLLM took."""
        self._accepted: dict[str, Path] = {}
        self._loaded: dict[str, Path] = {}
        """For each class that was loaded, by the name of its file: vLLM's own file, which need not exist."""

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow vLLM to read the descriptions among these files, which a verified revision has installed."""
        infos = (path for path in paths if not is_artifact(path) and RULES.rule(path) is not None)
        self._accepted.update((path, root / path) for path in infos)

    def refuse_all(self) -> None:
        """Allow none of the files that were accepted so far."""
        self.forget(list(self._accepted))

    def forget(self, paths: Collection[str]) -> None:
        """Allow none of these files any more."""
        for path in paths:
            self._accepted.pop(path, None)
            self.read.discard(path)

    def describe(self, callbacks: ProcessCallbacks, call: imports.Call) -> Any:
        """Run in the place of ``_LazyRegisteredModel._load_modelinfo_from_cache(self, module_hash)``."""
        own = call()
        if own is not None:
            return own
        callbacks.restored()
        model, digest = call.argument("self"), call.argument("module_hash")
        path = f"{MODEL_INFOS}/{_version()}/{digest}/{model._get_cache_filename()}"
        accepted = self._accepted.get(path)
        if accepted is None or not accepted.is_file():
            return None
        info = call.original(_InFolder(model, accepted.parent), digest)
        if info is not None:
            self.read.add(path)
        return info

    def note_class(self, call: imports.Call) -> Any:
        """Run in the place of ``_LazyRegisteredModel.load_model_cls(self)``."""
        loaded = call()
        model = call.argument("self")
        name = model._get_cache_filename()
        self._loaded[name] = Path(model._get_cache_dir()) / name
        return loaded

    def used(self) -> tuple[set[str], dict[str, Path]]:
        """Return the accepted descriptions of classes that this process loaded, and vLLM's own ones: path
        below the kind's folder -> vLLM's file."""
        own = {path: file for file in self._loaded.values() if (path := _place(file))}
        named = {Path(path).name for path in own}
        accepted = {path for path in self._accepted if Path(path).name in self._loaded.keys() - named}
        return accepted, own


class _InFolder:
    """Stands for a registered model of vLLM, with its descriptions in another folder."""

    def __init__(self, model: Any, folder: Path) -> None:
        self._model, self._folder = model, folder

    def _get_cache_dir(self) -> Path:
        return self._folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _place(file: Path) -> str:
    """Return the place of vLLM's own description below the kind's folder; empty if it is none."""
    try:
        with file.open("rb") as opened:
            digest = json.loads(opened.read(_MOST_BYTES))["hash"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    path = f"{MODEL_INFOS}/{_version()}/{digest}/{file.name}"
    return path if RULES.rule(path) is not None else ""


def _version() -> str:
    """Return 32 hex digits over what a description depends on and its own digest does not hold: the class's
    bases, which are vLLM's or a plugin's."""
    import vllm

    from ...wire.codec import canonical
    from ...wire.digest import Digest

    return Digest.of(canonical([str(vllm.__version__), sorted(plugins())])).hex[:32]
