"""Write what GitHub Actions reads: annotations, outputs and the summary of a job. Pure but for writing.

The forms are those of "Workflow commands for GitHub Actions" in GitHub's documentation, and the escapes are
those of `packages/core/src/command.ts` of github.com/actions/toolkit.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from cachesvc_client.wire.errors import StorageFull

from .annotations import Annotation

MAX_OF_A_LEVEL = 10
"""Annotations of one level that GitHub shows of a step; it drops the others without a word."""
MAX_SUMMARY_BYTES = 1 << 20
"""Bytes of the summary of a step; GitHub drops a larger one as a whole."""


def annotation_lines(annotations: Iterable[Annotation]) -> list[str]:
    """Return one workflow command for each annotation that GitHub shows, and say how many it does not."""
    lines, counts = [], Counter[str]()
    for one in annotations:
        counts[one.level] += 1
        if counts[one.level] < MAX_OF_A_LEVEL:
            lines.append(_command(one))
    for level, count in counts.items():
        more = count - MAX_OF_A_LEVEL + 1
        if more > 0:
            lines.append(f"::{level} title=cachesvc warm::{more} more: see the summary of this job")
    return lines


def unobeyed(text: str) -> str:
    """Return text of a log with a frame in which GitHub obeys no workflow command: parts of the text come
    from models."""
    token = secrets.token_hex(16)
    return f"::stop-commands::{token}\n{text}\n::{token}::"


def write_outputs(path: Path, outputs: Mapping[str, str]) -> None:
    """Add outputs to the file of a step. Values have one line. Raises ``StorageFull``."""
    _append(path, "".join(f"{name}={value}\n" for name, value in outputs.items()))


def write_summary(path: Path, markdown: str, short: str) -> None:
    """Add a report to the summary of a step; the short form, or a part of it, where the report is too long.
    Raises ``StorageFull``."""
    _append(path, fitting(markdown, short, MAX_SUMMARY_BYTES))


def fitting(markdown: str, short: str, limit: int) -> str:
    """Return the report, the short form, or the first lines of the short form, of at most ``limit`` bytes."""
    for text in (markdown, short):
        if len(text.encode()) <= limit:
            return text
    note = "\n\nThe rest is in the log of the job.\n"
    part = short.encode()[: limit - len(note)].decode(errors="ignore")
    return part.rpartition("\n")[0] + note


def _command(annotation: Annotation) -> str:
    properties = {"file": annotation.file, "line": annotation.line, "title": annotation.title}
    listed = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value)
    return f"::{annotation.level} {listed}::{_data(annotation.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _append(path: Path, text: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageFull(f"{path}: {error.strerror or error}") from None
