"""Read the settings of a file and of variables, and name what is wrong with one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomllib
from pydantic import ValidationError

from cachesvc_client.environment.variables import KNOWN, unknown_variables
from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.suggestion import did_you_mean

from .fields import OPTIONS, PREFIX, SECRET, Settings
from .together import check_together
from .values import SERVICE_PORT


def read_settings(config: Path | None = None, **options: Any) -> Settings:
    """Reads the settings. Raises ``InvalidRequest`` that names the setting and where it was set.

    ``options``: those of the command line; ``None`` is an absent one.
    """
    present = {name: value for name, value in options.items() if value is not None}
    _refuse_unknown_variables()
    # Variables have precedence over the file: they are read first, and the file sets the others.
    settings = _validate(present, _place)
    if config is not None:
        values = {**_read_file(config), **settings.model_dump(exclude_unset=True)}
        settings = _validate(values, lambda name: f"{config}: {name}")
    check_together(settings)
    return settings


def ignored_line() -> str | None:
    """Return the line about a variable that has the name of a setting, and a value that is not for it."""
    name = variable_of("port")
    value = os.environ.get(name, "")
    if not SERVICE_PORT.fullmatch(value):
        return None
    return f"{name}={value[:80]} is ignored: Kubernetes sets it beside a service of the name cachesvc-server"


def _refuse_unknown_variables() -> None:
    """Raise ``InvalidRequest`` for a variable that names no setting, or that lacks the middle of its
    name."""
    names = {variable_of(name) for name in Settings.model_fields}
    for variable, hint in unknown_variables(names, PREFIX):
        raise InvalidRequest(f"{variable}: there is no such setting", hint)
    short = {
        variable_of(name).replace(PREFIX, "CACHESVC_"): variable_of(name) for name in Settings.model_fields
    }
    for variable, _ in unknown_variables(KNOWN):
        if variable in short:
            raise InvalidRequest(f"{variable}: there is no such setting", f"did you mean {short[variable]}?")


def variable_of(setting: str) -> str:
    """Return the name of the variable of a setting."""
    return PREFIX + setting.upper()


def _place(setting: str) -> str:
    """Return the name of a setting with the option and the variable that may have set it."""
    option = f"--{setting} or " if setting in OPTIONS else ""
    return f"{setting} ({option}{variable_of(setting)})"


def _validate(values: dict[str, Any], where: Callable[[str], str]) -> Settings:
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        if first["type"] == "extra_forbidden":
            hint = did_you_mean(name, Settings.model_fields, "known: " + ", ".join(Settings.model_fields))
            raise InvalidRequest(f"{where(name)}: there is no such setting", hint) from None
        if name in SECRET:
            raise InvalidRequest(f"{where(name)}: {first['msg']}") from None
        text, message = str(first["input"])[:80], first["msg"].removeprefix("Value error, ")
        if first["type"].startswith("byte_size"):
            raise InvalidRequest(
                f"{where(name)}: {text!r} is no size", "a number of bytes, or a text such as 200GiB"
            ) from None
        raise InvalidRequest(f"{where(name)}: {message}, got {text!r}") from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidRequest(f"settings {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"settings {path}: {error}") from None
