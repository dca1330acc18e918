"""Make a package of AOTInductor as FOLDER/model.pt2 with compilers, or ``load`` it; call it, and print JSON.

Arguments are FOLDER [load]."""

import sys
from pathlib import Path

import torch
from ending import tell
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval()
    batch = torch.randn(2, 16)
    file = Path(sys.argv[1]) / "model.pt2"
    if sys.argv[2:] != ["load"]:
        file.parent.mkdir(exist_ok=True)
        program = torch.export.export(model, (batch,))
        torch._inductor.aoti_compile_and_package(program, package_path=str(file))
    with torch.no_grad():
        tell([torch._inductor.aoti_load_package(str(file))(batch)], [])


if __name__ == "__main__":
    main()
