"""What torch's releases do differently in Inductor's cache folder, in one place.

Read in the wheels of 2.8 to 2.15; docs/reference/versions.md says on which it was run. What a hook finds
decides, and not the number of the release: a row says what is known, and an unknown value is a doubt, for
which this kind does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

HOST_KERNEL_PARAMETERS: Mapping[str, str] = {
    "main_code": "2.8",
    "device_type": "2.8",
    "submit_fn": "2.8",
    "extra_flags": "2.8",
    "optimized_code": "2.8",
    "needs_vec_isa": "2.13",
    "kernel_needs_vec_isa": "2.13",
}
"""Parameters of ``CppCodeCache.load_async`` -> the first release that has them. A parameter that is not here
may decide the machine code, so a call with it has no key."""

ARTIFACT_FOLDERS: Mapping[str, Callable[[str], str]] = {
    "inductor": lambda key: f"fxgraph/{key[1:3]}/{key}",
    "aot_autograd": lambda key: f"aotautograd/{key}",
}
"""Types of PyTorch's records whose files are named by their content -> the folder of a key (2.8 to 2.15).
The third type that is captured is ``autotune``, whose key is the path of its file. ``pgo`` and
``precompile`` belong to other folders."""
