"""Start Ray on this machine alone, compile a model in a worker of it, end the worker in a named way, and
print the worker's report as JSON.

Arguments: ``task``, ``actor`` or ``serve``; ``shutdown``, ``kill``, ``SIGTERM`` or ``exit``; and
seconds between the answer and the end. ``WORKER_VARIABLES`` has variables for Ray's ``runtime_env`` as JSON.
With ``ANOTHER_MODEL`` the worker compiles a second model."""

import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import ray

VARIABLES = json.loads(os.environ.get("WORKER_VARIABLES", "{}"))
"""What Ray's ``runtime_env`` adds to the worker's variables."""
ADDRESS = "http://127.0.0.1:8000/"


class Model:
    """Compiles and calls a model when it is made, as the replica of a service does."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        self.model = torch.compile(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval())
        with torch.no_grad():
            self.output = self.model(torch.ones(2, 16))
            if os.environ.get("ANOTHER_MODEL"):
                torch.compile(nn.Sequential(nn.Linear(16, 8), nn.Tanh()))(torch.ones(2, 16))

    def described(self) -> dict[str, Any]:
        """Publish in mode readwrite, and return the report of this process."""
        from ending import described, publish

        publish()
        return {**described([self.output], ["ray"]), "pid": os.getpid()}

    def __call__(self, request: object) -> dict[str, Any]:
        return self.described()

    def leave(self) -> None:
        ray.actor.exit_actor()


def from_task() -> tuple[dict[str, Any], None]:
    @ray.remote(max_retries=0)
    def work() -> dict[str, Any]:
        return Model().described()

    return ray.get(work.remote()), None


def from_actor() -> tuple[dict[str, Any], Any]:
    actor = ray.remote(Model).remote()
    return ray.get(actor.described.remote()), actor


def from_serve() -> tuple[dict[str, Any], None]:
    from ray import serve

    serve.start(http_options={"host": "127.0.0.1", "port": 8000})
    deployment = serve.deployment(ray_actor_options={"runtime_env": {"env_vars": VARIABLES}})(Model)
    serve.run(deployment.bind())
    with urllib.request.urlopen(ADDRESS, timeout=60) as answer:
        return json.load(answer), None


def end(how: str, worker: int, actor: Any) -> None:
    """End the worker, or all of Ray."""
    if how == "kill":
        ray.kill(actor)
    elif how == "SIGTERM":
        os.kill(worker, signal.SIGTERM)
    elif how == "exit":
        actor.leave.remote()
    else:
        assert how == "shutdown", how
        return
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline, "the worker goes on"
        time.sleep(0.05)


def main() -> None:
    kind, how, seconds = sys.argv[1:]
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=True,
        runtime_env={"env_vars": VARIABLES} if kind != "serve" else None,
    )
    answer, actor = {"task": from_task, "actor": from_actor, "serve": from_serve}[kind]()
    time.sleep(float(seconds))
    end(how, answer["pid"], actor)
    if kind == "serve":
        from ray import serve

        serve.shutdown()
    ray.shutdown()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
