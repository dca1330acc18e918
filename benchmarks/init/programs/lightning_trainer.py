"""Compile a LightningModule: https://lightning.ai/docs/pytorch/latest/advanced/compile.html."""

import lightning as L
import torch
from torch import nn


class LitAutoEncoder(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, width), nn.ReLU(), nn.Linear(width, 3))
        self.decoder = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 28 * 28))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        z = self.encoder(x)
        x_hat = self.decoder(z)
        return nn.functional.mse_loss(x_hat, x)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((28, 28), index / 16), index % 10


autoencoder = LitAutoEncoder()
autoencoder = torch.compile(autoencoder)
train_loader = torch.utils.data.DataLoader(Pictures(), batch_size=8)
trainer = L.Trainer(
    max_epochs=1, limit_train_batches=2, logger=False, enable_checkpointing=False, accelerator="cpu"
)
trainer.fit(model=autoencoder, train_dataloaders=train_loader)
