"""The model of the quick start: a small text classifier in plain PyTorch."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, words: int = 5000, width: int = 128, layers: int = 2, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean(dim=1)).softmax(dim=-1)


class Block(nn.Module):
    """One layer of a transformer: attention, then two linear layers, each with a residual connection."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        projected = self.query_key_value(self.before_attention(hidden))
        query, key, value = projected.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + attended.transpose(1, 2).reshape(batch, length, width)
        return hidden + self.mlp(self.before_mlp(hidden))


def classifier() -> nn.Module:
    """Build the model. `warm.toml` names this function, and `serve.py` calls it."""
    return Classifier().eval()
