"""Answer one request by a predictor of KServe's Python SDK that compiles its model, and print the report as
JSON.

The request goes to KServe's own application without a port: its server would listen on every address."""

import asyncio

import httpx
import kserve
import torch
from ending import end
from kserve.constants.constants import FASTAPI_APP_IMPORT_STRING
from kserve.protocol.rest.server import RESTServer
from torch import nn


class Predictor(kserve.Model):
    def load(self) -> bool:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval()
        self.model = torch.compile(model)
        self.ready = True
        return self.ready

    async def predict(self, payload, headers=None, response_headers=None):
        with torch.no_grad():
            return {"predictions": self.model(torch.tensor(payload["instances"])).tolist()}


async def ask() -> list[list[float]]:
    from kserve.model_server import app

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        body = {"instances": [[float(number) for number in range(16)]]}
        answer = await client.post("/v1/models/model:predict", json=body, timeout=None)
        answer.raise_for_status()
        return answer.json()["predictions"]


def main() -> None:
    predictor = Predictor("model")
    predictor.load()
    server = kserve.ModelServer(enable_grpc=False)
    server.register_model(predictor)
    rest = RESTServer(FASTAPI_APP_IMPORT_STRING, server.dataplane, server.model_repository_extension, 8080)
    rest.create_application()
    end([torch.tensor(asyncio.run(ask()))], ["kserve"])


if __name__ == "__main__":
    main()
