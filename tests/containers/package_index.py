"""Lend a build this machine's way to its package index, and nothing of that to the image.

Where a machine has a mirror or an authority of its own, pip's configuration says so. The build gets it as
files that are mounted for its time: nothing here names a path or a host of any machine."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
"""Where programs of Debian look for the authorities that they trust."""
_INDEXES = ("index-url", "extra-index-url", "find-links")


def settings() -> dict[str, str]:
    """Return pip's settings on this machine, from its files and from variables, by their names in a file."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    values = {}
    for scope in ("global", "install", ":env:"):  # The last one counts.
        for name, value in re.findall(rf"^{scope}\.([\w.-]+)=(.*)$", listed.stdout, re.MULTILINE):
            values[name.lstrip(".")] = str(ast.literal_eval(value))
    return values


def folders_and_files(values: dict[str, str]) -> list[Path]:
    """Return what the settings name on this machine's disk.

    Of an index in a folder it is the folder around it: the index may link to files that lie beside it."""
    paths = []
    for value in values.values():
        for word in value.split():
            path = Path(word.removeprefix("file://"))
            if path.is_absolute() and path.exists():
                beside = word.startswith("file://") and len(path.parts) > 2
                paths.append(path.parent if beside else path)
    return list(dict.fromkeys(paths))


def uv_file(values: dict[str, str]) -> str:
    """Return the same for uv, which does not read pip's files and takes no folder as an index."""
    lines = ["native-tls = true"]
    for name in _INDEXES:
        words = [word for word in values.get(name, "").split() if not word.startswith("file:")]
        if words:
            lines.append(f"{name} = {json.dumps(words[0] if name == 'index-url' else words)}")
    return "\n".join(lines) + "\n"


def build_options(place: Path) -> list[str]:
    """Write the settings to ``place`` and return the options of a build that mount them."""
    values = settings()
    pip, uv = place / "pip.conf", place / "uv.toml"
    pip.write_text("[global]\n" + "".join(f"{name} = {' '.join(v.split())}\n" for name, v in values.items()))
    uv.write_text(uv_file(values))
    mounts = {str(pip): "/etc/pip.conf", str(uv): "/etc/uv/uv.toml"}
    mounts |= {str(path): str(path) for path in folders_and_files(values)}
    authorities = os.environ.get("SSL_CERT_FILE") or values.get("cert")
    if authorities and Path(authorities).is_file():
        mounts.pop(CERTIFICATES, None)
        mounts[authorities] = CERTIFICATES
    return [word for source, target in mounts.items() for word in ("-v", f"{source}:{target}:ro")]


def mounted(options: list[str]) -> set[str]:
    """Return the places at which the options mount something: buildah leaves them behind, empty."""
    return {option.split(":")[1] for option in options if ":" in option}
