"""``python -m tests.faults [WORD…]``: runs every cell of the matrix, or those whose names have one of the
words, and writes what they did to benchmarks/results/faults.json. The exit status is 1 if a service broke."""

from __future__ import annotations

import contextlib
import json
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.e2e.conftest import built_once
from tests.e2e.harness import WARMED

from .matrix import FAULTS, MOMENTS, RESULTS, injector, reference, run_cell


def main(words: list[str]) -> int:
    """Run the cells, one at a time. Return the exit status."""
    noted: dict[str, Any] = json.loads(RESULTS.read_text()) if words and RESULTS.exists() else {}
    cells = noted.setdefault("cells", {})
    noted |= {"date": time.strftime("%Y-%m-%d"), "versions": _versions()}
    wanted = [(fault, moment) for moment in MOMENTS for fault in FAULTS]
    broken = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        root = Path(folder)
        built = built_once(root, "function", "small", **WARMED)
        library = injector(root)
        expected = reference(root / "plain", library)
        for number, (fault, moment) in enumerate(wanted):
            name = f"{fault} @ {moment}"
            if words and not any(word in name for word in words):
                continue
            cell = run_cell(root / str(number), library, built.bundle, built.trusted, fault, moment, expected)
            print(f"{name}: {cell.said}, {cell.failed} calls failed {cell.broken}", flush=True)
            broken += bool(cell.broken)
            told = {"said": cell.said, "calls": cell.failed, "broken": cell.broken, "reasons": cell.reasons}
            cells.setdefault(fault, {})[moment] = told
            RESULTS.write_text(json.dumps(noted, indent=1) + "\n")
            with contextlib.suppress(OSError):
                subprocess.run(["rm", "-r", root / str(number)], check=False)
    return bool(broken)


def _versions() -> dict[str, str]:
    gcc = subprocess.run(
        ["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {
        "torch": version("torch"),
        "Python": platform.python_version(),
        "gcc": gcc,
        "glibc": platform.libc_ver()[1],
    }


sys.exit(main(sys.argv[1:]))
