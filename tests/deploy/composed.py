"""Read the compose file as `docker compose config` does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from .charts import ROOT

TOKEN = "csv_" + "0123456789abcdef" * 3


def compose(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the compose file with its variables filled in, as `docker compose config` does."""
    text = (ROOT / "deploy" / "compose" / "compose.yaml").read_text()

    def fill(match: re.Match[str]) -> str:
        name, _, default = match[1].partition(":-")
        name, _, message = name.partition(":?")
        value = env.get(name) or default
        assert value or not message, f"{name}: {message}"
        return value

    loaded: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{([^}]+)\}", fill, text).replace("$$", "$"))
    return loaded


def env_file() -> dict[str, str]:
    """Return ``.env.example`` with its open variables filled in."""
    lines = (ROOT / "deploy" / "compose" / ".env.example").read_text().splitlines()
    rows = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    open_ones = {name for name, value in rows.items() if not value}
    assert open_ones == {"POSTGRES_PASSWORD", "REDIS_PASSWORD", "S3_SECRET_KEY", "FIRST_TOKEN"}
    return {**rows, **dict.fromkeys(open_ones, "0123abcd"), "FIRST_TOKEN": TOKEN}
