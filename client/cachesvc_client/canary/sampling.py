"""Decides whether a start is one of the sample whose restored code a canary compares."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..environment.variables import CanarySetting

if TYPE_CHECKING:
    from ..ranks.job import Job

_DIGITS = 16
"""Hexadecimal digits of a digest that are a draw, so that a sample of 1 of a billion starts is fair too."""


def draw_of_job(job: Job) -> int:
    """Return the draw of a rank: the same for all ranks of a job on this node.

    The key of a job may be that of its last start (the port of a launcher is fixed in many clusters), so the
    process that started the ranks counts too.
    """
    from ..ranks.job_folder import process_id
    from ..wire.digest import Digest

    text = f"canary {job.key} {process_id(os.getppid())}"
    return int(Digest.of(text.encode()).hex[:_DIGITS], 16)


def is_sampled(setting: CanarySetting, drawn: int) -> bool:
    """Return whether a canary runs in the start with this draw."""
    return bool(setting.one_of) and drawn % setting.one_of == 0
