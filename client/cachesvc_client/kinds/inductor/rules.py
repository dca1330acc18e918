"""The files of the kind `inductor`.

The folder (``TORCHINDUCTOR_CACHE_DIR``), as torch 2.8 to 2.15 fill it::

    fxgraph/<k1k2>/<key>/<sha of content>     pickle, immutable: named by its content
    aotautograd/<key>/<sha of content>        pickle, immutable: named by its content
    <xx>/<hash>.best_config                   JSON, a tuning result; the local one wins
    cache/<system hash>                       JSON, max-autotune choices; the union, local ones win
    <xx>/<hash>.picked_kernel                 a number, the choice of a multi-kernel; the local one wins
    cachesvc/<host>/<key>.so                  cachesvc's: host kernels, see `host_kernels`

PyTorch makes the other files (``.py``, ``.cpp``, locks, its own ``.so``) again from these, or does not need
them (docs/pytorch.md, 3).
"""

from __future__ import annotations

import re
from typing import Any

from ..rules import HOST_FOLDER, FileRule, KindRules

GRAPH_FOLDERS = ("fxgraph", "aotautograd")
"""The folders of compiled graphs."""

_OF_PROCESS = r"0x[0-9a-f]+|(?m:^os\.environ\[.*$)"
"""What a process puts of itself into a graph entry: addresses, and its variables, in a program kept for
debugging (``torch/_dynamo/debug_utils.py``, ``generate_env_vars_string``)."""


def _merge_json(local: bytes, incoming: bytes) -> bytes:
    """Return the union of two JSON objects, deeply; on a conflict the local value stays.

    A local file that is no JSON object is returned as it is.
    """
    import json

    try:
        mine, theirs = json.loads(local), json.loads(incoming)
    except ValueError:
        return local
    return json.dumps(_union(mine, theirs)).encode() if isinstance(mine, dict) else local


def _union(mine: Any, theirs: Any) -> Any:
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return mine
    return {**theirs, **{key: _union(value, theirs.get(key, value)) for key, value in mine.items()}}


def _texts(entry: bytes) -> bytes:
    """Return the texts of a graph entry without those of its process: sources and guards.

    Unpickles nothing. Entries of one key differ by their guards, by the seconds that the compile took, and by
    what is kept for debugging (seen with torch 2.13). Raises ``ValueError`` for what is no pickle.
    """
    import json
    import pickletools

    try:
        texts = [
            re.sub(_OF_PROCESS, "", text) for _, text, _ in pickletools.genops(entry) if isinstance(text, str)
        ]
    except Exception as error:  # noqa: BLE001 - damaged bytes raise anything
        raise ValueError(f"no pickle: {type(error).__name__}") from None
    return json.dumps(texts).encode()


RULES = KindRules(
    "inductor",
    (
        # Last: a graph that is hit without its kernels compiles them one by one, which is slower than a miss.
        FileRule(r"fxgraph/[a-z0-9]{2}/f[a-z0-9]{20,80}/[a-z0-9]{20,80}", last=True, alike=_texts),
        FileRule(r"aotautograd/a[a-z0-9]{20,80}/[a-z0-9]{20,80}", last=True, alike=_texts),
        FileRule(HOST_FOLDER + r"/[0-9a-f]{16}/[0-9a-f]{64}\.so", write="ours"),
        FileRule(r"[a-z0-9]{2}/[a-z0-9_]{20,120}\.best_config", write="merge", merge=_merge_json),
        FileRule(r"cache/[0-9a-f]{40,64}", write="merge", merge=_merge_json),
        FileRule(r"[a-z0-9]{2}/c[a-z0-9]{20,80}\.picked_kernel"),
    ),
    deferrable=True,
)
