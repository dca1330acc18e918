"""The compiler caches that cachesvc knows: one package for each kind, and the list of them."""

from __future__ import annotations

from collections.abc import Mapping

from . import cuda, deepgemm, flashinfer, frames, helion, inductor, tilelang, torch_extensions, triton, vllm
from .kind import Kind
from .rules import FileRule, KindRules

KINDS: tuple[Kind, ...] = (
    inductor.KIND,
    triton.KIND,
    cuda.KIND,
    torch_extensions.KIND,
    frames.KIND,
    vllm.KIND,
    tilelang.KIND,
    flashinfer.KIND,
    helion.KIND,
    deepgemm.KIND,
)
"""Every kind. The folder of the first one may hold folders of others."""
BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}
RULES: Mapping[str, KindRules] = {kind.name: kind.rules for kind in KINDS}
VARIABLES = tuple(kind.variable for kind in KINDS)
"""The environment variables with which a user names the folders."""


def rule_of(kind: str, path: str) -> FileRule | None:
    """Return the rule for a file of a kind; ``None`` if the kind does not know the path."""
    return RULES[kind].rule(path)
