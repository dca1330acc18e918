"""Finds out which GPU this process will use, from NVML and without a CUDA context."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ..wire.factors import FactorValue

_BY_UUID = ("GPU-", "MIG-")
"""Prefixes of ``CUDA_VISIBLE_DEVICES`` where it names devices by UUID."""


def first_gpu(environ: Mapping[str, str]) -> dict[str, FactorValue]:
    """Returns the facts of the first device that CUDA will show to this process. Empty without a driver or a
    device."""
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
    physical = devices[0]
    if nvml.nvmlDeviceIsMigDeviceHandle(devices[0]):
        physical = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(devices[0])
        profile = name.partition(" MIG ")[2]
        if not profile:
            return facts  # an old driver returns the whole device's name: a doubt is a miss
        facts["mig"] = profile
    if _order_matters(nvml, visible) and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return facts  # NVML does not know CUDA's own order, fastest first
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(physical)
    return {**facts, "gpu": name, "compute_capability": f"{major}.{minor}"}


def _order_matters(nvml: Any, visible: str | None) -> bool:
    """Returns whether a device's number decides which device this process gets: numbers are used, and the
    devices differ."""
    if visible is not None and visible.startswith(_BY_UUID):
        return False
    return len({_text(nvml.nvmlDeviceGetName(device)) for device in _physical_devices(nvml)}) > 1


def visible_devices(nvml: Any, visible: str | None) -> list[Any]:
    """Returns NVML's handles of the devices that CUDA shows under ``CUDA_VISIBLE_DEVICES``, in CUDA's order.

    The variable lists numbers, or ``GPU-`` or ``MIG-`` UUIDs, as its first word does; an unambiguous prefix
    of a UUID is enough. Words after an invalid word count as invisible; a device that is named twice makes
    all devices invisible; an empty variable shows no device (CUDA C++ Programming Guide, environment
    variables; what the guide leaves open follows ``torch.cuda._parse_visible_devices`` and
    ``_transform_uuid_to_ordinals``). With MIG, CUDA enumerates one compute instance, and beside it no other
    device (NVIDIA MIG User Guide, CUDA device enumeration). Raises NVML's errors.
    """
    physical = _physical_devices(nvml)
    if visible is None:
        selection = physical
    elif visible.startswith("MIG-"):
        selection = _by_uuid(nvml, _all_instances(nvml, physical), visible, "MIG-")
    elif visible.startswith("GPU-"):
        selection = _by_uuid(nvml, physical, visible, "GPU-")
    else:
        selection = _by_number(physical, visible)
    usable = [instance for device in selection if (instance := _instance(nvml, device)) is not None]
    return [device for device in usable if nvml.nvmlDeviceIsMigDeviceHandle(device)][:1] or usable


def _physical_devices(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _by_uuid(nvml: Any, devices: list[Any], visible: str, prefix: str) -> list[Any]:
    uuids = [(_text(nvml.nvmlDeviceGetUUID(device)), device) for device in devices]
    selection: list[Any] = []
    for part in visible.split(","):
        matches = [device for uuid, device in uuids if uuid.startswith(part)]
        if len(part) <= len(prefix) or not part.startswith(prefix) or len(matches) != 1:
            break
        if matches[0] in selection:
            return []
        selection += matches
    return selection


def _by_number(physical: list[Any], visible: str) -> list[Any]:
    selection: list[Any] = []
    for part in visible.split(","):
        number = re.match(r"\+?([0-9]+)", part.strip())  # as strtoul reads: ``1gpu`` is 1
        if number is None or int(number[1]) >= len(physical):
            break
        device = physical[int(number[1])]
        if device in selection:
            return []
        selection.append(device)
    return selection


def _instance(nvml: Any, device: Any) -> Any:
    """Returns the device itself, or its first MIG instance if MIG is on; ``None`` if it has no instance."""
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
    instances = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
        except nvml.NVMLError:
            continue
    return instances


def _all_instances(nvml: Any, physical: list[Any]) -> list[Any]:
    return [instance for device in physical if _mig_on(nvml, device) for instance in _instances(nvml, device)]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
