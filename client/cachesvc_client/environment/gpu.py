"""Which GPU this process will use, as NVML tells it without a CUDA context."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ..wire.factors import FactorValue

_BY_UUID = ("GPU-", "MIG-")
"""What ``CUDA_VISIBLE_DEVICES`` begins with where it names devices by UUID."""


def first_gpu(environ: Mapping[str, str]) -> dict[str, FactorValue]:
    """The first device that CUDA will show to this process. Empty without a driver or a device."""
    if not os.path.exists("/dev/nvidiactl") and not os.path.exists("/dev/dxg"):
        return {}  # importing pynvml takes 60 ms
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        return _gpu_facts(pynvml, environ)
    except (pynvml.NVMLError, ValueError):
        return {}
    finally:
        pynvml.nvmlShutdown()


def _gpu_facts(nvml: Any, environ: Mapping[str, str]) -> dict[str, FactorValue]:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible_devices(nvml, visible)
    if not devices:
        return {}
    facts: dict[str, FactorValue] = {"driver": _text(nvml.nvmlSystemGetDriverVersion())}
    facts["gpu_count"] = len(devices)
    name = _text(nvml.nvmlDeviceGetName(devices[0]))
    whole = devices[0]
    if nvml.nvmlDeviceIsMigDeviceHandle(devices[0]):
        whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(devices[0])
        profile = name.partition(" MIG ")[2]
        if not profile:
            return facts  # an old driver gives the whole device's name: a doubt is a miss
        facts["mig"] = profile
    if _order_matters(nvml, visible) and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return facts  # CUDA's own order, fastest first, is not told by NVML
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(whole)
    return {**facts, "gpu": name, "compute_capability": f"{major}.{minor}"}


def _order_matters(nvml: Any, visible: str | None) -> bool:
    """Devices are meant by number, and which one has a number makes a difference here."""
    if visible is not None and visible.startswith(_BY_UUID):
        return False
    return len({_text(nvml.nvmlDeviceGetName(device)) for device in _whole(nvml)}) > 1


def visible_devices(nvml: Any, visible: str | None) -> list[Any]:
    """NVML's handles of what CUDA shows under ``CUDA_VISIBLE_DEVICES``, in CUDA's order.

    A list is of numbers, of ``GPU-`` or of ``MIG-`` UUIDs, as its first word is; of a UUID a beginning that
    is unambiguous is enough. What follows an invalid word is invisible; a device named twice makes all of
    them so; set to nothing shows none (CUDA C++ Programming Guide, environment variables; what it leaves
    open is as ``torch.cuda._parse_visible_devices`` and ``_transform_uuid_to_ordinals`` have it). With MIG,
    CUDA enumerates one compute instance, and beside it no other device (NVIDIA MIG User Guide, CUDA device
    enumeration). Raises NVML's errors.
    """
    whole = _whole(nvml)
    if visible is None:
        chosen = whole
    elif visible.startswith("MIG-"):
        chosen = _by_uuid(nvml, _all_instances(nvml, whole), visible, "MIG-")
    elif visible.startswith("GPU-"):
        chosen = _by_uuid(nvml, whole, visible, "GPU-")
    else:
        chosen = _by_number(whole, visible)
    shown = [one for device in chosen if (one := _instance(nvml, device)) is not None]
    return [one for one in shown if nvml.nvmlDeviceIsMigDeviceHandle(one)][:1] or shown


def _whole(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _by_uuid(nvml: Any, devices: list[Any], visible: str, prefix: str) -> list[Any]:
    named = [(_text(nvml.nvmlDeviceGetUUID(device)), device) for device in devices]
    chosen: list[Any] = []
    for part in visible.split(","):
        found = [device for uuid, device in named if uuid.startswith(part)]
        if len(part) <= len(prefix) or not part.startswith(prefix) or len(found) != 1:
            break
        if found[0] in chosen:
            return []
        chosen += found
    return chosen


def _by_number(whole: list[Any], visible: str) -> list[Any]:
    chosen: list[Any] = []
    for part in visible.split(","):
        number = re.match(r"\+?([0-9]+)", part.strip())  # as strtoul reads: ``1gpu`` is 1
        if number is None or int(number[1]) >= len(whole):
            break
        device = whole[int(number[1])]
        if device in chosen:
            return []
        chosen.append(device)
    return chosen


def _instance(nvml: Any, device: Any) -> Any:
    """The device itself, or its first MIG instance if MIG is on; ``None`` if it has none."""
    if nvml.nvmlDeviceIsMigDeviceHandle(device) or not _mig_on(nvml, device):
        return device
    return next(iter(_instances(nvml, device)), None)


def _mig_on(nvml: Any, device: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(device)
    except nvml.NVMLError:
        return False
    return bool(current)


def _instances(nvml: Any, device: Any) -> list[Any]:
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
        except nvml.NVMLError:
            continue
    return found


def _all_instances(nvml: Any, whole: list[Any]) -> list[Any]:
    return [instance for device in whole if _mig_on(nvml, device) for instance in _instances(nvml, device)]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
