"""Describe a GPU as a file, so that a machine without one can make the keys of entries for it.

A description is a claim, not a proof: it decides under which keys an entry lies and for which architecture
its kernels are compiled, and nothing else. An entry under a wrong key is never found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import InvalidRequest, Unsupported

FORMAT = 2
"""Version of the file's format."""
MAX_BYTES = 64 * 1024
"""Bytes of a file that are read at most."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+()/-]{0,99}")
_MOST = 1 << 48
"""Bound of every number in a description."""


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """Says what PyTorch and Triton ask a GPU before they compile for it.

    Attributes:
        format: The version of this format.
        name: The device's name, as the driver has it: it is in PyTorch's keys.
        capability: The compute capability, such as ``9.0``.
        properties: The numbers of ``torch.cuda.get_device_properties``, by their names there.
        triton: The numbers of Triton's ``get_device_properties``, by their names there.
        attention: The order in which PyTorch tries its attention kernels there, as numbers of
            ``torch.nn.attention.SDPBackend``. It is in the keys of graphs with a softmax.
        torch: The torch that asked, and the CUDA version it was built for.
        triton_version: The Triton that asked.
        driver: The version of the driver. No key holds it.
    """

    format: int
    name: str
    capability: str
    properties: dict[str, int] = field(default_factory=dict)
    triton: dict[str, int] = field(default_factory=dict)
    attention: list[int] = field(default_factory=list)
    torch: str = ""
    triton_version: str = ""
    driver: str = ""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` where a value cannot be one of a GPU."""
        if self.format != FORMAT:
            raise ValueError(f"format {self.format}: this version reads {FORMAT}")
        if not _NAME.fullmatch(self.name):
            raise ValueError("name: not the name of a device")
        if not re.fullmatch(r"[1-9][0-9]?\.[0-9]", self.capability):
            raise ValueError(f"capability {self.capability[:20]!r}: 9.0, for one, is expected")
        for numbers in (self.properties, self.triton):
            for name, number in numbers.items():
                if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name) or not 0 <= number < _MOST:
                    raise ValueError(f"{name[:64]!r}: not a number of a GPU")
        missing = sorted(NEEDED - self.properties.keys())
        if missing:
            raise ValueError(f"properties lack {', '.join(missing)}")
        if "max_shared_mem" not in self.triton:
            raise ValueError("triton lacks max_shared_mem")
        if not self.attention or sorted(self.attention) != list(range(len(self.attention))):
            raise ValueError("attention: not an order of PyTorch's attention kernels")

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Return the compute capability as two numbers."""
        major, _, minor = self.capability.partition(".")
        return int(major), int(minor)


NEEDED = frozenset(
    {
        *("multi_processor_count", "regs_per_multiprocessor", "max_threads_per_multi_processor"),
        *("max_threads_per_block", "warp_size", "total_memory", "shared_memory_per_block_optin"),
    }
)
"""Numbers without which keys or kernels would be others."""


def read(path: Path) -> DeviceDescription:
    """Return the description in a file. Raises ``InvalidRequest`` that names the file and what is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        return codec.build(DeviceDescription, codec.parse_json(data, limit=MAX_BYTES, what=str(path)))
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{path}: no description of a GPU: {error}",
            hint="make one on a machine with that GPU: cachesvc describe-gpu",
        ) from None


def describe() -> DeviceDescription:
    """Return the description of the first GPU that this process sees.

    Creates a CUDA context. Raises ``Unsupported`` without a GPU, or without Triton.
    """
    import torch

    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise Unsupported("this process sees no NVIDIA GPU", hint="run it where the service runs")
    try:
        import triton
        from triton.runtime import driver
    except ImportError:
        raise Unsupported("triton is not installed", hint="install torch with its requirements") from None
    properties = torch.cuda.get_device_properties(0)
    numbers = {name: getattr(properties, name) for name in dir(properties) if not name.startswith("_")}
    return DeviceDescription(
        FORMAT,
        properties.name,
        f"{properties.major}.{properties.minor}",
        {name: int(number) for name, number in sorted(numbers.items()) if _is_number(number)},
        {name: int(number) for name, number in sorted(driver.active.utils.get_device_properties(0).items())},
        _attention(),
        f"{torch.__version__} cuda {torch.version.cuda}",
        triton.__version__,
        _driver(),
    )


def _attention() -> list[int]:
    """Return in which order PyTorch tries its attention kernels on this GPU."""
    import torch

    from cachesvc_client.graphs.attention import settle_attention_order

    settle_attention_order()
    return [int(kernel) for kernel in torch._C._get_sdp_priority_order()]


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < _MOST


def _driver() -> str:
    """Return the driver's version; empty where NVML does not say."""
    from cachesvc_client.environment.detect import detect

    return str(detect().get("driver", ""))
