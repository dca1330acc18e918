"""Run a row's program as ``cachesvc warm`` runs it: ``python call.py ROW.json``.

With ``MATRIX_KEEP``, a folder, every process keeps its outputs there, in its rank's folder and under the next
number: the first is the cold compile's, the second that of finalise if there was one, and so on. The first
runs eager too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import outputs
import workloads


def main() -> None:
    row = json.loads(Path(sys.argv[1]).read_text())
    run = workloads.prepare(row)
    tensors = outputs.digests_of(run(workloads.compiler(row)))
    if not (folder := os.environ.get("MATRIX_KEEP")):
        return
    mine = outputs.own(Path(folder, "rank-RANK"))
    mine.mkdir(parents=True, exist_ok=True)
    number = len(list(mine.glob("*.pt")))
    if number == 0:
        eager = outputs.digests_of(run(workloads.identity))
        answer = outputs.compare_outputs(tensors, eager, outputs.TOLERANCE[row["dtype"]])
        Path(mine, "eager.json").write_text(json.dumps(answer))
    outputs.save(tensors, mine / f"{number:02d}.pt")
    workloads.end()


if __name__ == "__main__":
    main()
