"""Records the components of each key that was not found, and compares them with those of installed keys.

PyTorch lists the components of its keys for its own debugging, as lines ``[digest] name[part]: text``
(``FxGraphCachePickler.debug_lines``). For FX keys it makes the lines at every look-up, in 2.11 and 2.13. For
AOTAutograd's keys it makes them at every look-up in 2.11, and in 2.13 only if its log is at DEBUG; there
these hooks make the lines, without the components that the FX key has too. All of this happens only after a
miss, before a compile of seconds: it needs 15 ms on the compile thread [measured, CPU, 2.13], because the
graph changes afterwards. A hit costs one ``stat``.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from ..hooks import imports
from ..hooks.table import Hook
from ..wire.manifest.key_components import MAX_KEYS, MAX_TEXT, KeyFacts, combine
from . import ambient, door, operators

_log = logging.getLogger("cachesvc")

MAX_INPUTS = 16
"""Inputs of a graph whose components are recorded, at most."""
_LINE = r"\[(\w+)\] (\w+)(?:\[([^\]]*)\])?: ((?s:.*))"
"""Matches a line of PyTorch's: digest, component, part of it, text."""
_TENSOR = (
    r"TensorMetadata\(dtype=(?:torch\.)?(\w+), shape=(?:torch\.Size\()?(\[[^\]]*\])\)?, stride=(\([^)]*\)), "
    r"device=device\(type='(\w+)'(?:, index=(\d+))?\)"
)
_FLAGS = {
    "requires_grad": "requires grad",
    "is_inference": "of inference mode",
    "is_conj": "conjugate",
    "is_neg": "negative",
    "is_quantized": "quantized",
    "is_sparse": "sparse",
}
"""Fields of PyTorch's text about a tensor -> words for one that is true."""
_ALSO_IN_FX = ("inductor_config", "inductor_config_comms", "torch_version", "system_info", "autograd_config")
"""Attributes of an AOT key's details that its FX key has too, and ``autograd_config``, which is recorded in
parts."""

_BUILDER = "builder"
"""The component that stands for the age of the entry's builder, the likely cause before all others."""
_OLDER = "published before cachesvc put {} into PyTorch's key: warm again"
"""Text for an entry whose builder had no hooks for some parts of the key."""
_OWN_TEXTS = (*door.PARTS, operators.ATTRIBUTE)
"""Components whose texts are cachesvc's own: they name a place or a reason."""
_WORDS = {
    _BUILDER: _BUILDER,
    "grad_enabled": "grad mode",
    "autocast_state": "autocast",
    "disable_amp": "autocast",
    "deterministic_algorithms": "deterministic algorithms",
    "deterministic_algorithms_settings": "deterministic algorithms",
    "default_dtype": "default dtype",
    "cuda_matmul_settings": "matmul precision",
    "cpp_runtime_thread_count": "thread count",
    "functorch_config": "functorch config",
    "inductor_config": "inductor config",
    "inductor_config_comms": "inductor config of communication",
    "fx_kwargs": "compile option",
    "cache_key_tag": "cache key tag",
    "torch_version": "torch's sources",
    "system_info": "system",
    "user_defined_triton_source": "source of a Triton kernel",
    "triton_kernel_source_codes": "source of a Triton kernel",
    "python_operators": "code of an operator",
    **door.PARTS,
    "example_inputs": "input",
    "aot_config": "how parameters and inputs are passed",
    "gm": "graph",
}
"""Component -> words, the likely cause first: another grad mode changes options, inputs and graph too."""
_RANK = {words: rank for rank, words in enumerate(dict.fromkeys(_WORDS.values()))}
"""Words -> rank as a cause; the lowest is the likeliest."""
_OTHER_RANK = _RANK["source of a Triton kernel"] - 0.5
"""Rank of a component without words."""


_AUTOGRAD = "torch._functorch._aot_autograd.autograd_cache"
_PURPOSE = "records what a key was made of that was looked up and not found"
_IF_MISSING = "a miss is not explained by the part of the key that differs"
_GRAPH_LOOKUP = Hook(
    "torch._inductor.codecache", "FxGraphCache.load_with_key", _PURPOSE, _IF_MISSING, role="explain"
)
_AUTOGRAD_LINES = Hook(
    _AUTOGRAD, "_get_debug_lines_for_cache_key", _PURPOSE, _IF_MISSING, since="2.13", role="explain"
)
_AUTOGRAD_LOOKUP = Hook(_AUTOGRAD, "autograd_cache_key", _PURPOSE, _IF_MISSING, until="2.13", role="explain")
HOOKS = (_GRAPH_LOOKUP, _AUTOGRAD_LINES, _AUTOGRAD_LOOKUP)


@dataclass(frozen=True, slots=True)
class ComponentDifference:
    """Names one component in which two keys differ, in words, with both texts."""

    component: str
    here: str
    entry: str


class Recorder:
    """Records the components of the keys that PyTorch looked up and did not find, the first ``MAX_KEYS``."""

    def __init__(self) -> None:
        self.missed: dict[str, dict[str, str]] = {}
        self.seconds = 0.0
        """Seconds that the recording took on the compile thread."""

    def note_lookup(
        self, key: Any, *, missed: Callable[[], bool], lines: Callable[[], Iterable[str]]
    ) -> None:
        """Record a key if it was ``missed``. ``lines``: returns PyTorch's lines about the key.

        Never raises, whatever PyTorch passes.
        """
        try:
            if key in self.missed or len(self.missed) >= MAX_KEYS or not missed():
                return
            begin = time.perf_counter()
            self.missed[str(key)] = parse_lines(lines())
            self.seconds += time.perf_counter() - begin
        except Exception:  # noqa: BLE001 - nothing of ours raises inside a compile
            _log.debug("no components of key %r", key, exc_info=True)

    def facts(self, keys: Iterable[str] | None = None) -> KeyFacts | None:
        """Return the components of the recorded keys; ``None`` if there are none. ``keys``: only of these."""
        recorded = self.missed
        if keys is not None:
            recorded = {key: self.missed[key] for key in keys if key in self.missed}
        return combine(recorded) if recorded else None


def install_hooks(recorder: Recorder) -> None:
    """Put the hooks in place when the application imports the modules. Safe to call again."""

    def load_with_key(call: imports.Call) -> Any:
        answer = call()
        key = call.argument("key")
        recorder.note_lookup(
            key, missed=lambda: answer[0] is None, lines=lambda: call.argument("debug_lines")
        )
        return answer

    _GRAPH_LOOKUP.install(load_with_key)
    _AUTOGRAD_LINES.watch(functools.partial(_hook_autograd, recorder))


def parse_lines(lines: Iterable[str]) -> dict[str, str]:
    """Return PyTorch's lines as component -> text, without lines of another form."""
    components: dict[str, str] = {}
    for line in lines:
        match = re.fullmatch(_LINE, line)
        if match is None:
            continue
        digest, name, part, text = match.groups()
        if name == "example_inputs" and part and int(part) >= MAX_INPUTS:
            continue
        component = name if part is None else f"{name}[{part}]"
        if len(component) <= MAX_TEXT:
            components[component] = (_long_text if name in _OWN_TEXTS else _text)(digest, text)
    return components


def component_differences(
    missed: Mapping[str, Mapping[str, str]], entries: Sequence[KeyFacts]
) -> list[ComponentDifference]:
    """Return the components in which missed keys differ from the nearest keys of the entries.

    A key is compared with keys of its own layer. The likely cause comes first, each component once. Pure.
    """
    facts_by_key = {key: facts for facts in entries for key in facts.keys}
    by_component: dict[str, ComponentDifference] = {}
    for key, mine in missed.items():
        if key in facts_by_key:
            continue  # an entry has the key, and PyTorch did not take it: its guards, or a damaged file
        same_layer = {other: facts for other, facts in facts_by_key.items() if other[0] == key[0]}
        candidates = [_between(mine, facts.of(other, mine)) for other, facts in same_layer.items()]
        if candidates:
            for row in min(candidates, key=len):
                by_component.setdefault(row.component, row)
    return sorted(by_component.values(), key=lambda row: _rank(row.component))


def _between(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[ComponentDifference]:
    """Return the components in which two keys differ."""
    differences = [
        ComponentDifference(_in_words(name), *_shown(mine[name], theirs[name]))
        for name in mine
        if name in theirs and mine[name] != theirs[name]
    ]
    differences += _on_one_side(mine, theirs)
    if ambient.ALWAYS not in mine or ambient.ALWAYS in theirs:
        return differences
    lacking = [words for name, words in ambient.PARTS.items() if name in mine and name not in theirs]
    older = _OLDER.format(" and ".join(dict.fromkeys(lacking)))
    return [ComponentDifference(_BUILDER, "newer", older), *differences]


def _on_one_side(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[ComponentDifference]:
    """Return what only one of two keys says of code that is not torch's own."""
    names = {name for name in (*mine, *theirs) if name.partition("[")[0] in door.PARTS}
    return [
        ComponentDifference(
            door.PARTS[name.partition("[")[0]], mine.get(name, "nothing"), theirs.get(name, "nothing")
        )
        for name in sorted(names)
        if name not in mine or name not in theirs
    ]


def _in_words(component: str) -> str:
    name, _, part = component.rstrip("]").partition("[")
    words = _WORDS.get(name, name.strip("_").replace("_", " "))
    if not part:
        return words
    return f"{words} {part}" if name == "example_inputs" else f"{words}: {part}"


def _rank(component: str) -> float:
    words = component.partition(":")[0]
    return _RANK.get("input" if words.startswith("input ") else words, _OTHER_RANK)


def _shown(mine: str, theirs: str) -> tuple[str, str]:
    """Return two texts without their digests, if they differ without them."""
    left, right = mine.partition(" #")[0], theirs.partition(" #")[0]
    return (left, right) if left != right else (mine, theirs)


def _long_text(digest: str, text: str) -> str:
    """Return a text of cachesvc's own, which names a place or a reason, with the digest of what is left
    out."""
    shown = "".join(letter for letter in text if letter.isprintable())
    return shown if len(shown) <= MAX_TEXT else f"{shown[: MAX_TEXT - 14]}… #{digest[:8]}"


def _beside(text: str) -> str:
    """Return in words what a tensor has beside its dtype, sizes and device, such as ``, requires grad``."""
    words = [word for name, word in _FLAGS.items() if f"{name}=True" in text]
    if offset := re.search(r"storage_offset=([1-9]\d*)", text):
        words.append(f"{offset[1]} into its storage")
    return "".join(f", {word}" for word in words)


def _text(digest: str, text: str) -> str:
    tensor = re.match(_TENSOR, text)
    if tensor is not None:
        dtype, shape, stride, device, index = tensor.groups()
        where = device + (f":{index}" if index else "")
        seen = f"{dtype}{shape} strides {stride} {where}{_beside(text)}"
        return seen[: MAX_TEXT - 10] + f" #{digest[:8]}"
    plain = (
        len(text) <= 60 and text.isascii() and text.isprintable() and "#" not in text and " at 0x" not in text
    )
    return (text or "''") if plain else f"another #{digest[:12]}"


def _hook_autograd(recorder: Recorder, module: ModuleType) -> None:
    def debug_lines(call: imports.Call) -> Any:
        lines = call()
        pickler, details, key = map(call.argument, ("pickler", "details", "key"))
        recorder.note_lookup(
            key,
            missed=lambda: _missing(key),
            lines=lambda: _lines(module, lines or pickler.debug_lines(_reduced(details))),
        )
        return lines

    def autograd_cache_key(call: imports.Call) -> Any:
        answer = call()
        key = answer[0] if isinstance(answer, tuple) else None
        recorder.note_lookup(key, missed=lambda: _missing(answer[0]), lines=lambda: _lines(module, answer[1]))
        return answer

    if _AUTOGRAD_LINES.owner(module) is not None:
        _AUTOGRAD_LINES.install_now(module, debug_lines)
    else:
        _AUTOGRAD_LOOKUP.install_now(module, autograd_cache_key)


def _missing(key: str) -> bool:
    root = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return root is None or not os.path.isdir(os.path.join(root, "aotautograd", key))


def _reduced(details: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{name: value for name, value in vars(details).items() if name not in _ALSO_IN_FX}
    )


def _lines(module: ModuleType, lines: Iterable[str]) -> list[str]:
    """Return the lines of a key with functorch's configuration in parts, which the key has as one pickle."""
    import pickle

    config: dict[str, Any] = pickle.loads(
        module.config.save_config()
    )  # bytes of this process, of this moment
    others = [line for line in lines if "] autograd_config: " not in line[:80]]
    return others + [f"[value] functorch_config[{name}]: {value}" for name, value in config.items()]
