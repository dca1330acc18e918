"""Train a ViT as train.py of timm does: --amp --torchcompile (https://huggingface.co/docs/timm/training_script)."""

import argparse
from contextlib import suppress
from functools import partial

import timm
import torch
from timm.optim import create_optimizer_v2

parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
parser.add_argument("--model", default="vit_tiny_patch16_224", type=str)
parser.add_argument("--num-classes", type=int, default=10)
parser.add_argument("--img-size", type=int, default=32)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--amp", action="store_true", default=True)
parser.add_argument("--torchcompile", nargs="?", type=str, default="inductor", const="inductor")


def main():
    args = parser.parse_args()
    torch.manual_seed(42)
    model = timm.create_model(
        args.model, num_classes=args.num_classes, img_size=args.img_size, drop_path_rate=0.0, depth=2
    )
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    amp_autocast = partial(torch.autocast, device_type="cpu", dtype=torch.bfloat16) if args.amp else suppress
    if args.torchcompile:
        model = torch.compile(model, backend=args.torchcompile)
    loss_fn = torch.nn.CrossEntropyLoss()
    model.train()
    for _ in range(args.steps):
        input = torch.randn(4, 3, args.img_size, args.img_size)
        target = torch.randint(0, args.num_classes, (4,))
        with amp_autocast():
            output = model(input)
            loss = loss_fn(output, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("loss", float(loss))


if __name__ == "__main__":
    main()
