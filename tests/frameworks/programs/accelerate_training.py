"""Train by Accelerate in bfloat16, in a loop that tells cachesvc of its steps, and print JSON: the report and
a digest of the weights."""

import torch
from accelerate import Accelerator
from ending import tell
from torch import nn
from training_job import EPOCHS, FOLDER, RESUME, batches, make_model

from cachesvc_client.integrations.training import TrainingCache


def main() -> None:
    cache = TrainingCache()
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", dynamo_backend="inductor")
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled, optimizer, loader = accelerator.prepare(model, optimizer, batches())
    if RESUME:
        accelerator.load_state(str(FOLDER / "state"))
    steps = 0
    for epoch in range(1 if RESUME else 0, EPOCHS):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(compiled(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            cache.step()
            steps += 1
        if epoch == 0:
            accelerator.save_state(str(FOLDER / "state"))
    cache.end()
    tell(model.parameters(), ["accelerate"], {"steps": steps})


if __name__ == "__main__":
    main()
