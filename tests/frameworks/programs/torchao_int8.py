"""Call a model whose weights torchao quantised to int8, compiled."""

import torch
from ending import end
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).eval().to(torch.bfloat16)
    quantize_(model, Int8WeightOnlyConfig())
    batch = torch.randn(4, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        output = torch.compile(model)(batch)
    end([output], ["torchao"])


if __name__ == "__main__":
    main()
