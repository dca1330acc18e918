"""Start a Python process that a test talks to, interrupts or ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_python(
    arguments: Sequence[str],
    place: Path,
    variables: Mapping[str, str],
    cwd: Path | None = None,
    python: Sequence[str] = (sys.executable,),
) -> Iterator[subprocess.Popen[str]]:
    """Start Python with ``arguments`` and ``variables`` alone, and kill it if it lives when the block ends.

    The test writes to its stdin and reads its stdout. Its stderr is the file ``err`` in ``place``.
    """
    with open(place / "err", "wb") as err:
        process = subprocess.Popen(
            [*python, *arguments],
            cwd=cwd,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()
