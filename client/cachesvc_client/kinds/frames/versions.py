"""On which releases of torch frames are recorded and given: those that the tests of this kind ran on.

torch 2.8 and 2.9 have no ``torch._dynamo.package.load_guards_state``, and 2.10 was not run.
"""

from __future__ import annotations

RELEASES = ("2.11", "2.12", "2.13", "2.14", "2.15")


def is_known(torch: str) -> bool:
    """Return whether frames may be used with a version of torch, such as ``2.13.0+cpu``."""
    return ".".join(torch.split(".")[:2]) in RELEASES
