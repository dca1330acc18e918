"""Write annotations in the form of GitLab's Code Quality reports, which a merge request shows at the line.
Pure.

The form is "Code Quality report format" in GitLab's documentation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from .annotations import Annotation

_SEVERITIES = {"error": "major", "warning": "minor"}


def code_quality(annotations: Iterable[Annotation]) -> list[dict[str, Any]]:
    """Return a finding for each annotation that names a file: GitLab takes no others."""
    return [_finding(one) for one in annotations if one.file]


def _finding(annotation: Annotation) -> dict[str, Any]:
    # Without the message: a target that is cold for another reason is the same finding.
    identity = "\n".join((annotation.file, annotation.title))
    return {
        "description": f"{annotation.title}: {annotation.message}",
        "check_name": "cachesvc-warm",
        "fingerprint": hashlib.sha256(identity.encode()).hexdigest(),
        "severity": _SEVERITIES[annotation.level],
        "location": {"path": annotation.file, "lines": {"begin": annotation.line or 1}},
    }
