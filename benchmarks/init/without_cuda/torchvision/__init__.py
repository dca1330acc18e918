"""Import torchvision, whose wheel is for CUDA, beside a torch for the CPU.

tools/frameworks_env.sh says where it is. Its import asks for a schema of two operators that this torch cannot
load; no program here calls them.
"""

import sys
from pathlib import Path

import torch

_REAL = Path(sys.prefix) / "torchvision" / "torchvision"
_library = torch.library.Library("torchvision", "FRAGMENT")
for _operator in ("nms", "qnms"):
    _library.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
__path__ = [str(_REAL)]
__file__ = str(_REAL / "__init__.py")
exec(compile(Path(__file__).read_text(), __file__, "exec"))
