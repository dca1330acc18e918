"""Adapters of caches for torch.compile. A class of at most 50 lines makes another cache one of them:
``python -m benchmarks.field --caches your_module:YourCache``.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hosts import QUICK, ROOT


@dataclass(frozen=True)
class Place:
    """Says where the files of a cache are.

    Attributes:
        store: What processes and hosts share. It is the builder's at first.
        folder: An empty folder on the host of one process.
        reach: The variables with which processes reach what `Cache.running` started.
    """

    store: Path
    folder: Path
    reach: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return this place for `read` in another process."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def read(cls, text: str) -> Place:
        """Return the place that `text` wrote."""
        told = json.loads(text)
        return cls(Path(told["store"]), Path(told["folder"]), told["reach"])


class Cache:
    """Keeps nothing between processes. Others override what they do differently.

    Attributes:
        name: Its name in the table.
        setting: What a user sets, in the table.
        moves: Whether its processes start on fresh hosts; else all of them on the builder's.
        in_hunt: The module that the hunt for false hits asks instead of cachesvc's client.
    """

    name = "none: each process compiles"
    setting = "a folder of its own"
    moves = True
    in_hunt = "benchmarks.field.in_hunt"

    def running(self, store: Path) -> AbstractContextManager[dict[str, str]]:
        """Run the servers that it needs; enter with the variables of the processes that use them."""
        return nullcontext({})

    def fill(self, start: Callable[[dict[str, str]], Any], place: Place) -> None:
        """Fill the store; ``start(variables)`` runs the program once, on the builder's host."""
        start(self.variables(place, building=True))

    def bring(self, place: Place) -> None:
        """Put what a host needs into its folder, before the process starts."""

    def used(self, place: Place) -> Path:
        """Return the folder in which a process keeps its files."""
        return place.folder

    def kept(self, place: Place) -> Path:
        """Return the folder with the files that are reused."""
        return self.used(place)

    def variables(self, place: Place, building: bool = False) -> dict[str, str]:
        """Return the variables of a process."""
        return {"TORCHINDUCTOR_CACHE_DIR": str(self.used(place)), **place.reach}

    def load(self, place: Place, program: str) -> None:
        """Do in a process what comes before its first compile."""

    def save(self, place: Place, program: str) -> None:
        """Do in the builder's process what comes after the program."""

    def damage(self, place: Place, change: Callable[[bytes], bytes]) -> None:
        """Change every file that is reused. The files in `kept` are put back afterwards."""
        for path in [path for path in self.kept(place).rglob("*") if path.is_file()]:
            path.write_bytes(change(path.read_bytes()))


class Local(Cache):
    name, moves = "PyTorch's folder, left in place", False
    setting = "`TORCHINDUCTOR_CACHE_DIR`"

    def used(self, place: Place) -> Path:
        return place.store


class Copied(Cache):
    name = "PyTorch's folder, copied to another host"
    setting = "`TORCHINDUCTOR_CACHE_DIR`, `cp -a`"

    def bring(self, place: Place) -> None:
        shutil.copytree(place.store, place.folder, symlinks=True, dirs_exist_ok=True)

    def variables(self, place: Place, building: bool = False) -> dict[str, str]:
        return {"TORCHINDUCTOR_CACHE_DIR": str(place.store if building else place.folder)}


class MegaCache(Cache):
    name = "mega-cache"
    setting = "`save_cache_artifacts`, `load_cache_artifacts`"

    def kept(self, place: Place) -> Path:
        return place.store

    def load(self, place: Place, program: str) -> None:
        import torch

        if (place.store / program).exists():
            torch.compiler.load_cache_artifacts((place.store / program).read_bytes())

    def save(self, place: Place, program: str) -> None:
        import torch

        if (saved := torch.compiler.save_cache_artifacts()) is not None:
            (place.store / program).write_bytes(saved[0])


class Redis(Cache):
    name = "PyTorch's Redis cache"
    setting = "`TORCHINDUCTOR_{FX_GRAPH,AUTOGRAD,AUTOTUNE}_REMOTE_CACHE=1`"

    @contextmanager
    def running(self, store: Path) -> Iterator[dict[str, str]]:
        from benchmarks.cold_start import redis_server, redis_variables

        with redis_server(store) as url:
            yield redis_variables(url)

    def kept(self, place: Place) -> Path:
        return place.folder

    def damage(self, place: Place, change: Callable[[bytes], bytes]) -> None:
        import redis

        with redis.Redis.from_url(place.reach["TORCHINDUCTOR_REDIS_URL"]) as client:
            if not hasattr(self, "_values"):
                self._values = {key: client.get(key) for key in client.scan_iter()}
            for key, value in self._values.items():
                client.set(key, change(value))


class Cachesvc(Cache):
    name = "**cachesvc**, warm and a fresh host"
    setting = "`CACHESVC_NAME`, `CACHESVC_URL`"
    in_hunt = "tests.differences.hunt.client"

    @contextmanager
    def running(self, store: Path) -> Iterator[dict[str, str]]:
        from benchmarks.hosts import registry

        with registry(store) as self._registry:
            yield self._registry.service

    def fill(self, start: Callable[[dict[str, str]], Any], place: Place) -> None:
        from benchmarks.entries import warm

        spec = place.store / "warm.toml"
        text = 'name = "field/model"\n[[target]]\nid = "model"\nfactory = "benchmarks.models:tiny"\n'
        spec.write_text(f'{text}paths = ["{ROOT}"]\nruns = 1\n')
        warm(spec, self._registry, **QUICK)

    def kept(self, place: Place) -> Path:
        return place.store / "blobs"

    def variables(self, place: Place, building: bool = False) -> dict[str, str]:
        return {"CACHESVC_NAME": "field/model", "CACHESVC_STORE": str(place.folder), **place.reach}


ALL = ("Cache", "Local", "Copied", "MegaCache", "Redis", "Cachesvc")


def named(text: str) -> Cache:
    """Return the cache ``module:Class``, or ``Class`` of this module."""
    module, _, name = text.rpartition(":")
    cache: Cache = getattr(importlib.import_module(module or __name__), name)()
    return cache
