"""Defines validated strings: the base of every small value type on the wire."""

from __future__ import annotations

import re
from typing import Any, ClassVar, TypeVar

T = TypeVar("T", bound="ValidText")


class ValidText(str):
    """Holds a ``str`` that matches ``pattern``.

    Subclasses set ``pattern`` and ``what`` (for the message). The constructor raises ``ValueError`` on
    anything else, so that a handler behind the edge never sees a bad value.
    """

    pattern: ClassVar[re.Pattern[str]]
    what: ClassVar[str]
    __slots__ = ()

    def __new__(cls: type[T], text: object) -> T:
        if not isinstance(text, str) or not cls.pattern.fullmatch(text):
            raise ValueError(f"not a {cls.what}: {str(text)[:120]!r}")
        return super().__new__(cls, text)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> dict[str, Any]:
        """Lets FastAPI use these types as they are. A core schema is a plain dictionary, so this module
        imports nothing for it."""
        return {
            "type": "function-after",
            "function": {"type": "no-info", "function": cls},
            "schema": {"type": "str", "pattern": f"^(?:{cls.pattern.pattern})$"},
            "serialization": {"type": "to-string"},
        }


def count_text(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun, such as ``1 entry`` or ``3 entries``. ``many``: the plural, if it is not
    ``one`` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
