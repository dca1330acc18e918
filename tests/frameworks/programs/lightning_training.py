"""Train by Lightning, with cachesvc's callback, and print JSON: the report and a digest of the weights."""

import lightning
import torch
from ending import tell
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from training_job import EPOCHS, FOLDER, RESUME, batches, make_model

from cachesvc_client.integrations.lightning import CacheCallback


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def training_step(self, batch, number):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        inputs, labels = batch
        self.log("validation", nn.functional.cross_entropy(self.model(inputs), labels))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    callback = CacheCallback()
    checkpoints = ModelCheckpoint(FOLDER, "{epoch}", save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=[callback, checkpoints],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Classifier()
    module.model.compile()
    resumed = str(FOLDER / "epoch=0.ckpt") if RESUME else None
    trainer.fit(module, batches(), batches(), ckpt_path=resumed)
    tell(module.parameters(), ["lightning"], {"steps": trainer.global_step})


if __name__ == "__main__":
    main()
