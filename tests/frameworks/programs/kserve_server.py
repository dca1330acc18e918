"""Serve a model by KServe's own server, which listens on all addresses; the argument is the port.

The model is compiled and called in ``load``, so the server is ready after its first call. An answer has the
report of the process. A request for two numbers of rows compiles a second model."""

import sys
from typing import Any

import kserve
import torch
from ending import described, publish
from torch import nn


class Predictor(kserve.Model):
    def load(self) -> bool:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval()
        self.model = torch.compile(model)
        self.other = torch.compile(nn.Sequential(nn.Linear(16, 8), nn.Tanh()))
        with torch.no_grad():
            self.model(torch.ones(1, 16))
        publish()
        self.ready = True
        return self.ready

    async def predict(
        self, payload: Any, headers: Any = None, response_headers: Any = None
    ) -> dict[str, Any]:
        rows = torch.tensor(payload["instances"])
        with torch.no_grad():
            output = self.model(rows)
            if payload.get("another_model"):
                self.other(rows)
        return {"predictions": output.tolist(), "report": described([output], ["kserve"])}


if __name__ == "__main__":
    predictor = Predictor("model")
    predictor.load()
    # KServe reads the command line when it is imported, and knows no argument of this program.
    kserve.ModelServer(http_port=int(sys.argv[1]), enable_grpc=False).start([predictor])
