"""Decides whether a start is one of the sample whose restored code a canary compares.

The module imports little, since every process that attaches draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..environment.variables import CanarySetting

if TYPE_CHECKING:
    from ..ranks.job import Job

_BYTES = 8
"""Bytes of a draw, so that a sample of 1 of a billion starts is fair too."""


def draw(random: Callable[[int], bytes] = os.urandom) -> int:
    """Return the draw of a start. Processes that it forks take it over."""
    return int.from_bytes(random(_BYTES), "big")


def draw_of_job(job: Job) -> int:
    """Return the draw of a rank: the same for all ranks of a job on this node.

    The key of a job may be that of its last start (the port of a launcher is fixed in many clusters), so the
    process that started the ranks counts too.
    """
    from ..ranks.job_folder import process_id
    from ..wire.digest import Digest

    text = f"canary {job.key} {process_id(os.getppid())}"
    return int(Digest.of(text.encode()).hex[: 2 * _BYTES], 16)


def is_sampled(setting: CanarySetting, drawn: int) -> bool:
    """Return whether a canary runs in the start with this draw."""
    return bool(setting.one_of) and drawn % setting.one_of == 0
