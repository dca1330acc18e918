"""Says why the files of a replay are not those of the compile before it: PyTorch's key is another one."""

from __future__ import annotations

from cachesvc_client.graphs.key_components import component_differences
from cachesvc_client.wire.manifest.key_components import KeyFacts


def other_keys(saved: KeyFacts | None, before: KeyFacts | None) -> tuple[str, ...]:
    """Return how the keys that a replay saved differ from those of the compile before it: the likely cause
    alone. Such keys are other ones in each process."""
    if saved is None or before is None:
        return ()
    rows = component_differences({key: saved.of(key) for key in saved.keys}, [before])
    return tuple(
        f"PyTorch's key differs from the builder's: {row.component}: here {row.here}, there {row.entry}"
        for row in rows[:1]
    )
