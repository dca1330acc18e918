"""``python -m tools.settings_page``: writes docs/reference/settings.md from the registry's settings model.

``make pages`` runs it, and a test fails if the page is not what the model says.
"""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ByteSize
from pydantic.fields import FieldInfo

from cachesvc.settings import PREFIX, SECRET, Settings
from tools.markdown import DOCS, generated, single_quoted, table

PAGE = DOCS / "reference" / "settings.md"

HEAD = f"""\
# Settings of the registry

{generated("cachesvc/settings/fields.py")}

`cachesvc serve` and `cachesvc admin --local` read these settings. A setting has three places; the first that
names it decides:

1. an option of the command: `--data`, `--host`, `--port`;
2. a variable: `{PREFIX}` and the setting's name in capitals, such as `{PREFIX}KEEP_BYTES=200GiB`;
3. a TOML file that `--config` names: `keep_bytes = "200GiB"`.

Durations are seconds. A size is a number of bytes or a text such as `200GiB`. An unknown setting in the file,
a variable `{PREFIX}…` that names no setting, and a value that is not allowed end the start with exit status 2
and one line that names the setting, and the nearest one that there is. `{PREFIX}PORT=tcp://…`, which
Kubernetes sets beside a service of the name `cachesvc-server`, is ignored with one line.
"""


def render() -> str:
    """The whole page."""
    lines = table(
        ("setting", "default", "allowed", "meaning"),
        (
            (f"`{name}`", _default(field), _allowed(field), _meaning(name, field))
            for name, field in Settings.model_fields.items()
        ),
    )
    return HEAD + "\n" + "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    if field.default is None:
        return "not set"
    if field.default_factory is not None:
        return "empty"
    if isinstance(field.default, Path | str):
        return f"`{field.default}`" if str(field.default) else "empty"
    return f"`{field.default}`"


def _allowed(field: FieldInfo) -> str:
    if get_origin(field.annotation) is dict:
        return "a table"
    types = [_plain(one) for one in get_args(field.annotation) or (field.annotation,) if one is not NoneType]
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(field.annotation))
    kind = {Path: "a path", str: "text", int: "a whole number", bool: "true, false", ByteSize: "a size"}[
        types[0]
    ]
    bounds = {
        name: getattr(rule, name) for rule in field.metadata for name in ("ge", "le") if hasattr(rule, name)
    }
    if "ge" in bounds and "le" in bounds and types[0] is int:
        return f"{kind}, {bounds['ge']} to {bounds['le']}"
    return f"{kind}, {bounds['ge']} or more" if bounds.get("ge") else kind


def _plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _meaning(name: str, field: FieldInfo) -> str:
    secret = " A secret: errors never show its value." if name in SECRET else ""
    return single_quoted(str(field.description or "")) + secret


def undocumented() -> list[str]:
    """Settings that have no docstring."""
    fields: dict[str, Any] = Settings.model_fields
    return [name for name, field in fields.items() if not field.description]


if __name__ == "__main__":
    PAGE.write_text(render())
