"""Run many starters in threads: ``python -m benchmarks.fleet.process``.

The first line of stdin is the plan. The process writes the line ``ready``, waits for another line, starts all
at once, and writes ``compile`` for each compile that begins and at the end the starts as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from benchmarks.fleet.starter import Plan, Starter, as_json

_writing = threading.Lock()


def main() -> None:
    fields = json.loads(sys.stdin.readline())
    plan = Plan(**{**fields, "urls": tuple(fields["urls"])})
    starters = [Starter(plan, number, lambda: _say("compile")) for number in range(plan.clients)]
    barrier = threading.Barrier(plan.clients + 1)

    def run(starter: Starter) -> dict[str, object]:
        barrier.wait()
        return as_json(starter.run())

    with ThreadPoolExecutor(plan.clients) as pool:
        runs = [pool.submit(run, starter) for starter in starters]
        _say("ready")
        sys.stdin.readline()
        barrier.wait()
        results = [one.result() for one in runs]
    _say(json.dumps(results))


def _say(line: str) -> None:
    with _writing:
        print(line, flush=True)


if __name__ == "__main__":
    main()
