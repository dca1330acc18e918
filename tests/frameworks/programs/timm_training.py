"""Train a ViT of timm with AMP in bfloat16, and print JSON: the report and a digest of the weights."""

import sys
from pathlib import Path

import torch
from torch import nn

# tools/frameworks_env.sh says why torchvision lies apart. Its operators are for CUDA only. Its import needs a
# schema of these two; timm's models and its training call none.
sys.path.append(str(Path(sys.prefix) / "torchvision"))
library = torch.library.Library("torchvision", "FRAGMENT")
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm  # noqa: E402
from ending import end  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402

STEPS = 2
SIZE = 64


def main() -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=10, img_size=SIZE, depth=2).train()
    compiled = torch.compile(model)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    for _ in range(STEPS):
        pictures, labels = torch.randn(4, 3, SIZE, SIZE), torch.randint(0, 10, (4,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(compiled(pictures), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    end(model.parameters(), ["timm"])


if __name__ == "__main__":
    main()
