"""Run all forms of ``programs/`` and keep what each torch makes of them: ``python -m tests.forms``.

For each file of forms: a process that compiles, one that records frames, as `warm` has it, and a service in
a fresh process, each with an empty HOME, TMPDIR, cache folders and working directory. A form is *recorded*
if the service traces and compiles nothing; *refused* if it traces, with the reason; *wrong* if its outputs
are not those of the builder, or not eager's. The results of other versions stay in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.conditions import commit, keep, now
from benchmarks.hosts import QUICK, exit_status, use_this_tree
from cachesvc_client.bundle.seal import SigningKey

from . import page

HERE = Path(__file__).parent
FILES = ("calls", "training", "objects", "models", "served")
STAGES = ("compile", "record", "serve")
_SCALAR = {**QUICK, "TORCHINDUCTOR_VEC_ISA_OK": "0", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
Answer = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", type=os.path.abspath, default=sys.executable, help="an interpreter with another torch"
    )
    parser.add_argument("--files", nargs="+", default=FILES, choices=FILES)
    parser.add_argument("--forms", nargs="+", default=(), help="only these of the files")
    parser.add_argument("--jobs", type=int, default=2, help="files of forms that run at once")
    parser.add_argument("--json", type=Path, default=page.RESULTS)
    options = parser.parse_args()
    use_this_tree()
    status = exit_status(lambda folder: _measure(options, folder))
    if status == 0 and options.json == page.RESULTS:
        page.write()
    return status


def _measure(options: argparse.Namespace, folder: Path) -> None:
    version = subprocess.check_output(
        [options.python, "-c", "import torch; print(torch.__version__.partition('+')[0])"], text=True
    ).strip()
    with ThreadPoolExecutor(options.jobs) as pool:
        pending = [
            pool.submit(run, name, folder / name, options.python, options.forms) for name in options.files
        ]
        forms: Answer = {}
        for one in as_completed(pending):  # an error of one file loses no row of those that have ended
            forms |= one.result()
            _keep(version, forms, options.json)
    for form, row in forms.items():
        print(f"{row['outcome']:10} {form}: {row['why']}")


def _keep(version: str, forms: Answer, path: Path) -> None:
    """Write rows of a version; its other rows, and those of other versions, stay."""
    report: Answer = json.loads(path.read_text()) if path.exists() else {}
    kept = report.get(version, {}).get("forms", {})
    rows = {form: row | {"source": commit()} for form, row in forms.items()}
    report[version] = {"date": now(), "forms": {**kept, **rows}}
    keep(report, path)


def run(name: str, place: Path, python: str = sys.executable, only: Sequence[str] = ()) -> Answer:
    """Return a row for each form of a file, or for some: its group, its words, the outcome and the reason."""
    place.mkdir(parents=True)
    key = SigningKey.generate()
    key.save(place / "signing.key")
    trusted = {"CACHESVC_TRUSTED_KEYS": str(key.public)}
    answers = {stage: _stage(stage, [name, *only], place, python, trusted) for stage in STAGES}
    return {form: _row(form, answers) for form in answers["compile"]["forms"]}


def _stage(stage: str, forms: list[str], place: Path, python: str, variables: dict[str, str]) -> Answer:
    host = place / stage
    for folder in ("home", "tmp", "work"):
        (host / folder).mkdir(parents=True)
    own = {"HOME": str(host / "home"), "TMPDIR": str(host / "tmp"), "PATH": os.environ["PATH"]}
    environ = {**own, "PYTHONPATH": os.environ["PYTHONPATH"], **_SCALAR, **variables}
    words = (stage, str(place / "forms.cachesvc"), str(place / "signing.key"), *forms)
    command = [python, str(HERE / "process.py"), *words]
    result = subprocess.run(
        command, cwd=host / "work", env=environ, capture_output=True, text=True, timeout=900, check=False
    )
    (place / f"{stage}.err").write_text(result.stderr)
    if result.returncode:
        raise RuntimeError(f"{forms[0]}, {stage}: {result.stderr[-3000:]}")
    answer: Answer = json.loads(result.stdout.strip().splitlines()[-1])
    return answer


def _row(form: str, answers: dict[str, Answer]) -> Answer:
    built, recorded, served = (answers[stage]["forms"][form] for stage in STAGES)
    group, words = answers["compile"]["groups"][form]
    row = {"group": group, "form": words}
    if error := built.get("error"):
        return row | {"outcome": "error", "why": error}
    if error := recorded.get("error") or served.get("error"):
        return row | {"outcome": "wrong", "why": error}
    if not (served["right"] and recorded["right"] and built["right"]):
        return row | {"outcome": "wrong", "why": "other outputs than eager's"}
    if not built["traces"]:
        return row | {"outcome": "error", "why": "nothing was traced in the builder"}
    if not served["traces"]:
        same = served["digest"] == built["digest"]
        return row | {"outcome": "recorded" if same else "wrong", "why": "" if same else "other bits"}
    late = answers["record"]["not_recorded"]
    why = [*recorded["reasons"], *(_first_of(one, late) for one in served["reasons"])]
    return row | {
        "outcome": "refused",
        "why": why[0] if why else "",
        "traces": served["traces"],
        "compilations": served["compilations"],
        "reasons": why,
    }


def _first_of(reason: str, late: list[str]) -> str:
    """Return why a frame that a service misses was not written, if the recorder said so at its end."""
    name = reason.partition(": ")[0]
    return next((one for one in late if one.startswith(f"{name}: ")), reason)


if __name__ == "__main__":
    sys.exit(main())
