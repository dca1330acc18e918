"""What PyTorch's own keys were made of: kept beside the files, read only after a miss.

A manifest carries it as one text (base64 of zlib of canonical JSON). The names of 600 settings of Inductor's
would be larger than the rest of a small manifest, so they do not travel: whoever compares has the same torch,
and so the same names in the same order.
"""

from __future__ import annotations

import binascii
import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAX_ENCODED = 128 << 10
"""Characters in a manifest."""
MAX_RAW = 2 << 20
MAX_KEYS = 128
MAX_TEXT = 120
MIN_UNNAMED = 32
"""Parts of one component (``inductor_config[…]``) whose names are worth leaving out."""


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """``keys``: key -> component -> text; ``shared``: what all of them have in common, said once.

    Texts are short and stand for equality: values that are long, or no plain text, end in ``#`` and a piece
    of PyTorch's own digest of them. ``unnamed``: component -> digest of its parts' names, then the parts'
    texts in the order of their names; all keys that have the component have these.
    """

    keys: dict[str, dict[str, str]] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    unnamed: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.keys) > MAX_KEYS:
            raise ValueError(f"key facts: {len(self.keys)} keys, more than the {MAX_KEYS} allowed")
        if not all(self.unnamed.values()):
            raise ValueError("key facts: unnamed parts without the digest of their names")
        parts = [dict.fromkeys(texts, component) for component, texts in self.unnamed.items()]
        for texts in (self.shared, *parts, *self.keys.values()):
            for text in (*texts, *texts.values()):
                if len(text) > MAX_TEXT or not text.isprintable():
                    raise ValueError(f"key facts: at most {MAX_TEXT} printable characters, not {text[:40]!r}")

    def of(self, key: str, names: Iterable[str] = ()) -> dict[str, str]:
        """All components of one key. ``names``: of a key's components here, which name the unnamed ones; they
        are left out if these are other names."""
        found = {**self.shared, **self.keys[key]}
        known = sorted(names)
        for component, (digest, *texts) in self.unnamed.items():
            parts = _parts(component, known)
            if _names_digest(parts) == digest and len(parts) == len(texts):
                found.update(zip(parts, texts, strict=True))
        return found

    def encode(self) -> str:
        """For a manifest. What does not fit is left out, the last keys first; empty if nothing fits."""
        from .codec import canonical

        keys = dict(self.keys)
        while keys:
            data = canonical(KeyFacts(keys, self.shared, self.unnamed))
            text = binascii.b2a_base64(zlib.compress(data, 9), newline=False).decode()
            if len(text) <= MAX_ENCODED and len(data) <= MAX_RAW:
                return text
            keys = dict(list(keys.items())[: len(keys) // 2])
        return ""


def decode(text: str) -> KeyFacts:
    """The inverse. Raises ``ValueError``; never more than ``MAX_RAW`` bytes are made of it."""
    import base64

    from .codec import build, parse_json

    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text, validate=True), MAX_RAW + 1)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"key facts: {error}") from None
    return build(KeyFacts, parse_json(data, limit=MAX_RAW, what="key facts"))


def together(keys: Mapping[str, Mapping[str, str]]) -> KeyFacts:
    """The facts of these keys, with what they share said once; the first ``MAX_KEYS``."""
    some = dict(list(keys.items())[:MAX_KEYS])
    values: dict[str, set[str]] = {}
    for texts in some.values():
        for component, text in texts.items():
            values.setdefault(component, set()).add(text)
    shared = {component: next(iter(held)) for component, held in values.items() if len(held) == 1}
    own = {
        key: {name: text for name, text in texts.items() if name not in shared} for key, texts in some.items()
    }
    unnamed: dict[str, tuple[str, ...]] = {}
    for component in sorted({name.partition("[")[0] for name in shared if name.endswith("]")}):
        parts = _parts(component, sorted(values))
        if len(parts) >= MIN_UNNAMED and all(part in shared for part in parts):
            unnamed[component] = (_names_digest(parts), *(shared.pop(part) for part in parts))
    return KeyFacts(own, shared, unnamed)


def _parts(component: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{component}[") and name.endswith("]")]


def _names_digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
