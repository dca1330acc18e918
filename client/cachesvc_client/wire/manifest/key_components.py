"""Defines the components of PyTorch's own keys. They are kept beside the files, and read only after a miss.

A manifest carries them as one text (base64 of zlib of canonical JSON). The names of Inductor's 600 settings
would be larger than the rest of a small manifest, so the names do not travel: a client that compares has the
same torch, and so the same names in the same order.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAX_ENCODED = 128 << 10
"""Largest number of characters of the text in a manifest."""
MAX_RAW = 2 << 20
"""Largest number of bytes of the JSON that the text unpacks to."""
MAX_KEYS = 128
"""Largest number of keys whose components one manifest carries."""
MAX_TEXT = 120
"""Largest number of characters of a component's name or value."""
MIN_UNNAMED = 32
"""Least number of parts of one component (``inductor_config[…]``) from which their names are omitted."""


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Holds the components of several keys. ``keys``: key -> component -> text. ``shared``: components that
    all keys have in common, stored once.

    Texts are short and serve to test equality: a value that is long, or no plain text, ends in ``#`` and a
    piece of PyTorch's own digest of it. ``unnamed``: component -> digest of the names of its parts, then the
    texts of the parts in the order of their names; every key that has the component has these parts.
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
        """Returns all components of one key. ``names``: names of the components of a key of this process,
        from which the unnamed parts get their names; the parts are omitted if their names are others."""
        components = {**self.shared, **self.keys[key]}
        sorted_names = sorted(names)
        for component, (digest, *texts) in self.unnamed.items():
            parts = _parts(component, sorted_names)
            if _names_digest(parts) == digest and len(parts) == len(texts):
                components.update(zip(parts, texts, strict=True))
        return components

    def encode(self) -> str:
        """Returns the text for a manifest. Omits the last keys where the text would be too long; the
        text is empty if nothing fits."""
        from ..codec import canonical

        keys = dict(self.keys)
        while keys:
            data = canonical(KeyFacts(keys, self.shared, self.unnamed))
            text = binascii.b2a_base64(zlib.compress(data, 9), newline=False).decode()
            if len(text) <= MAX_ENCODED and len(data) <= MAX_RAW:
                return text
            keys = dict(list(keys.items())[: len(keys) // 2])
        return ""


def decode(text: str) -> KeyFacts:
    """Parses the text of `KeyFacts.encode`. Unpacks ``MAX_RAW`` bytes at most. Raises ``ValueError``."""
    import base64

    from ..codec import build, parse_json

    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text, validate=True), MAX_RAW + 1)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"key facts: {error}") from None
    return build(KeyFacts, parse_json(data, limit=MAX_RAW, what="key facts"))


def combine(keys: Mapping[str, Mapping[str, str]]) -> KeyFacts:
    """Builds the record of the first ``MAX_KEYS`` of these keys, with the components that they share stored
    once."""
    first_keys = dict(list(keys.items())[:MAX_KEYS])
    values: dict[str, set[str]] = {}
    for texts in first_keys.values():
        for component, text in texts.items():
            values.setdefault(component, set()).add(text)
    shared = {component: next(iter(texts)) for component, texts in values.items() if len(texts) == 1}
    own_components = {
        key: {name: text for name, text in texts.items() if name not in shared}
        for key, texts in first_keys.items()
    }
    unnamed: dict[str, tuple[str, ...]] = {}
    for component in sorted({name.partition("[")[0] for name in shared if name.endswith("]")}):
        parts = _parts(component, sorted(values))
        if len(parts) >= MIN_UNNAMED and all(part in shared for part in parts):
            unnamed[component] = (_names_digest(parts), *(shared.pop(part) for part in parts))
    return KeyFacts(own_components, shared, unnamed)


def _parts(component: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{component}[") and name.endswith("]")]


def _names_digest(names: Iterable[str]) -> str:
    import hashlib  # here: it loads OpenSSL, for which `attach` has no time

    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
