"""Answer one request by a replica of Ray Serve that compiles its model, and print the replica's report as
JSON."""

import json

import ray
import torch
from ray import serve
from torch import nn


@serve.deployment
class Service:
    """Runs in a process that Ray starts, and that cachesvc reaches by the variables alone."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval()
        self.model = torch.compile(model)

    def __call__(self, numbers: list[float]) -> str:
        from ending import described, publish

        with torch.no_grad():
            output = self.model(torch.tensor([numbers]))
        publish()
        return json.dumps(described([output], ["ray"]))


def main() -> None:
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    handle = serve.run(Service.bind(), route_prefix=None)
    answer = handle.remote([float(number) for number in range(16)]).result()
    serve.shutdown()
    ray.shutdown()
    print(answer, flush=True)


if __name__ == "__main__":
    main()
