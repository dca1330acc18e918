"""Define ``subject.Net`` in another file, on other lines, with other names for the class and its
variables."""

# A comment that was not there.

import torch
import torch.nn.functional as F
from subject import shift


class Renamed(torch.nn.Module):
    """Computes what ``subject.Net`` computes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(in_features=width, out_features=16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(
            self.first(inputs),
        )
        hidden = shift(hidden)
        return hidden.softmax(-1) * 2.5
