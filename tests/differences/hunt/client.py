"""Everything that the hunt asks of the client under test, in one place."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

NAME = "team/hunt"


def open_builder() -> Any:
    """Return the session of a process that compiles."""
    from cachesvc_client.config.settings import Config
    from cachesvc_client.session.sessions import open_local

    return open_local(Config.read())


def attach(bundle: Path) -> Any:
    """Restore a bundle and return the session. Raises ``RuntimeError`` if that does not end."""
    import cachesvc_client

    session = cachesvc_client.attach(NAME, bundle=bundle)
    if not cachesvc_client.wait(120):
        raise RuntimeError(f"the restore is not over: {cachesvc_client.report()}")
    return session


def start_recording(serving: bool) -> None:
    """Record each frame from now on; ``serving``: as a service does, from its first trace on."""
    _process().kinds["frames"].recording.start(serving=serving)


def save_records() -> list[str]:
    """Write what was recorded in this process into its folder; return why frames were not recorded."""
    process = _process()
    root = process.folders.roots().get("frames")
    if root is None:
        return ["this torch has no frames"]
    process.kinds["frames"].used_files(root)
    return list(process.all_kinds.not_recorded())


def before_row(program: str) -> None:
    """Do nothing: what was restored holds every row."""


def after_row(program: str) -> None:
    """Do nothing: one bundle is published for all rows."""


def read_records() -> None:
    """Read the files of frames now, so that children need not."""
    replayer = getattr(_process().kinds["frames"], "_replayer", None)
    if replayer is not None and hasattr(replayer, "_read"):
        replayer._read()


def give_no_frames() -> None:
    _process().kinds["frames"].leave_folder()


def frames_given() -> int:
    return int(_process().kinds["frames"].activity().mark)


def refused_frames() -> list[str]:
    """Return why no frame was given."""
    replayer = getattr(_process().kinds["frames"], "_replayer", None)
    return [str(reason) for reason in getattr(replayer, "reasons", {})]


def report() -> tuple[str, list[str]]:
    """Return the outcome and its reasons."""
    import cachesvc_client

    told = cachesvc_client.report()
    return str(told.state), [str(reason) for reason in told.reasons]


def publish(session: Any, bundle: Path, key: Path) -> None:
    """Write a bundle of all that lies in the folders."""
    from tests.e2e.programs import recorded_session

    write: Any = recorded_session.publish
    target = "hunt/float32/default"
    write(session, bundle, key, True, NAME, target, measured={"first_call": 10.0})


def judge_torch() -> None:
    """Have the client judge whether torch is as released: each forked child would do it again."""
    with contextlib.suppress(ImportError):  # a client of another checkout
        from cachesvc_client.graphs.released import comparison

        comparison.changes()


def folders() -> list[Path]:
    return list(_process().folders.roots().values())


def _process() -> Any:
    from cachesvc_client.process.process import process

    return process()


def new_key(path: Path) -> str:
    """Make a signing key; return its public part."""
    from cachesvc_client.bundle.seal import SigningKey

    SigningKey.generate().save(path)
    return str(SigningKey.load(path).public)


def loads_and_compiles() -> tuple[int, int]:
    """Return how many graphs came from a cache, and how many were compiled.

    Nothing of PyTorch is replaced to count: the client compares what a program replaced.
    """
    from torch._dynamo.utils import counters

    graphs, kept = counters["inductor"], counters["aot_autograd"]
    loaded = kept["autograd_cache_hit"] + graphs["fxgraph_cache_hit"]
    return int(loaded), int(graphs["fxgraph_cache_miss"] + graphs["fxgraph_cache_bypass"])
