"""Run a row whose kernels or operators were edited: ``edited.py ROW.json --answer FILE --expect FILE``.

Runs in a copy of this folder with the edit in it (`matrix.py --steps kernel_edit`), and restores what was
warmed before the edit. Told: whether the outputs are those of the edited code (eager, in this process) and
not those of the builder's, what was compiled, and what the report and ``explain`` name first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import cachesvc_client
import cachesvc_client.auto  # The client is imported before torch, as in a service.
from cachesvc_client.config.settings import Config
from cachesvc_client.queries.explain import explain
from cachesvc_client.wire.names import Name

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", type=Path)
    parser.add_argument("--answer", type=Path, required=True)
    parser.add_argument("--expect", type=Path, required=True, help="the builder's outputs")
    options = parser.parse_args()
    row = json.loads(options.row.read_text())
    import outputs
    import workloads

    run = workloads.prepare(row)
    tensors = outputs.digests_of(run(workloads.compiler(row)))
    workloads.synchronise()
    report = cachesvc_client.report()
    tolerance = outputs.TOLERANCE[row["dtype"]]
    name, here = Name.parse(os.environ["CACHESVC_NAME"]), report.compared.facts
    nearest = explain(Config.read(), name, here=here).entries
    answer = {
        "state": report.state,
        "compilations": report.compilations,
        "reasons": list(report.reasons[:3]),
        "report": [one.factor for one in report.compared.differences],
        "explain": [one.factor for one in nearest[0].reasons] if nearest else [],
        "key differences": [str(one) for one in report.compared.key_differences[:3]],
        "against_eager": outputs.compare_outputs(
            tensors, outputs.digests_of(run(workloads.identity)), tolerance
        ),
        "against_builder": outputs.compare_outputs(
            tensors, outputs.load(outputs.own(options.expect)), tolerance
        ),
        "seconds": report.seconds,
    }
    outputs.own(options.answer).write_text(json.dumps(answer))
    sys.stderr.flush()
    os._exit(0)  # process.py does the same.


if __name__ == "__main__":
    main()
