"""The files of the kind `vllm`.

The folder lies inside of Inductor's, and cachesvc alone writes it. vLLM's own folder
(``VLLM_CACHE_ROOT``) stays as it is: nothing is installed there, and vLLM is given the path of a file that
was verified. The first folder is named by what vLLM's keys leave out (`identity`), and the rest of the path
is vLLM's (read in 0.32.0)::

    <identity>/torch_aot_compile/<64 hex>/<rank>/model         pickle: the traced graph, and, where vLLM
                                                               compiles piecewise, its code
    <identity>/<10 hex>/<rank>/<prefix>/vllm_compile_cache.py  Python literal: which artifact is whose
    <identity>/<10 hex>/<rank>/<prefix>/artifact_compile_range_<a>_<b>_subgraph_<n>

vLLM writes beside them ``computation_graph.py``, which nobody reads, and ``cache_key_factors.json``, which
has the values of variables: both stay on the builder's host.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..rules import FileRule, KindRules

PLACEHOLDER = "{cachesvc:vllm}"
"""Stands for the kind's folder in files that travel."""
INDEX = "vllm_compile_cache.py"
"""The file that says which artifact belongs to which part of a graph."""
RANK = r"rank_\d{1,5}_\d{1,5}(_dev\d{1,4})?"
"""The folder of one rank; some versions add the number of the device."""
_IDENTITY = r"[0-9a-f]{32}"
_PREFIX = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"


def _portable(data: bytes, root: Path) -> bytes:
    """Return an index with a placeholder for the folder."""
    return data.replace(str(root).encode(), PLACEHOLDER.encode())


def _local(data: bytes, root: Path) -> bytes:
    """Return an index with ``root`` for the placeholder.

    Raises ``ValueError`` for one that names a file outside of the folder: vLLM opens what an index names.
    """
    import ast

    try:
        index = ast.literal_eval(data.decode())
        handles = [value["graph_handle"] for value in index.values()]
        names = [str(name) for name, _ in handles]
        places = [str(place) for _, place in handles]
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        SyntaxError,
        RecursionError,
        MemoryError,
    ) as error:
        raise ValueError(f"no index of vLLM's: {type(error).__name__}") from None
    for name, place in zip(names, places, strict=True):
        inside = place.removeprefix(PLACEHOLDER + "/")
        if inside == place or RULES.rule(inside) is None or not inside.endswith("/" + name):
            raise ValueError(f"names {place[:120]!r}, which is no file of this kind")
    return data.replace(PLACEHOLDER.encode(), str(root).encode())


RULES = KindRules(
    "vllm",
    (
        FileRule(rf"{_IDENTITY}/torch_aot_compile/[0-9a-f]{{64}}/{RANK}/model", last=True),
        FileRule(
            rf"{_IDENTITY}/[0-9a-f]{{10}}/{RANK}/{_PREFIX}/{re.escape(INDEX)}",
            portable=_portable,
            local=_local,
            last=True,
        ),
        FileRule(
            rf"{_IDENTITY}/[0-9a-f]{{10}}/{RANK}/{_PREFIX}/"
            r"artifact_compile_range_\d{1,10}_\d{1,10}_subgraph_\d{1,5}"
        ),
    ),
)


def inside_of_torch_compile_cache(path: str) -> str:
    """Return the part of a path of vLLM's below its ``torch_compile_cache``; empty for any other path."""
    _, found, rest = path.rpartition("/torch_compile_cache/")
    return rest if found else ""
