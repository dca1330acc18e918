"""Run a service that does not know cachesvc and whose workers compile. Print one JSON line per worker.

Run plainly, the program spawns two workers with multiprocessing; under torchrun each rank is a worker."""

import json
import multiprocessing
import os
import sys


def work(label: str) -> None:
    import torch
    from model import inputs, make

    model = make()
    with torch.no_grad():
        output = torch.compile(model)(inputs())
        difference = float((output - model(inputs())).abs().max())
    client = sys.modules.get("cachesvc_client")
    report = client.report() if client else None
    answer = {
        "worker": label,
        "state": report.state if report else "not attached",
        "compilations": report.compilations if report else -1,
        "reasons": list(report.reasons) if report else [],
        "difference": difference,
    }
    print(json.dumps(answer) + "\n", end="", flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        work("rank " + os.environ["RANK"])
    else:
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(f"spawned {number}",)) for number in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
