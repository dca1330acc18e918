"""What PyTorch's own keys were made of: kept beside the files, read only after a miss.

A manifest carries it as one text (base64 of zlib of canonical JSON): it costs a hit nothing to carry, and 600
settings of Inductor's would be larger than the rest of a small manifest.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_ENCODED = 128 << 10
"""Characters in a manifest."""
MAX_RAW = 2 << 20
MAX_KEYS = 128
MAX_TEXT = 120


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """``keys``: key -> component -> text; ``shared``: what all of them have in common, said once.

    Texts are short and stand for equality: values that are long, or no plain text, end in ``#`` and a piece
    of PyTorch's own digest of them.
    """

    keys: dict[str, dict[str, str]] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.keys) > MAX_KEYS:
            raise ValueError(f"key facts: {len(self.keys)} keys, more than the {MAX_KEYS} allowed")
        for texts in (self.shared, *self.keys.values()):
            for text in (*texts, *texts.values()):
                if len(text) > MAX_TEXT or not text.isprintable():
                    raise ValueError(f"key facts: at most {MAX_TEXT} printable characters, not {text[:40]!r}")

    def of(self, key: str) -> dict[str, str]:
        """All components of one key."""
        return {**self.shared, **self.keys[key]}

    def encode(self) -> str:
        """For a manifest. What does not fit is left out, the last keys first; empty if nothing fits."""
        from .codec import canonical

        keys = dict(self.keys)
        while keys:
            data = canonical(KeyFacts(keys, self.shared))
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
    return KeyFacts(
        {
            key: {name: text for name, text in texts.items() if name not in shared}
            for key, texts in some.items()
        },
        shared,
    )
