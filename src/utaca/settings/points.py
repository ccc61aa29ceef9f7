"""Names of operating points, as used in result paths and tables."""

from __future__ import annotations

import re

from utaca.settings.schema import Point

POLICY = re.compile(r"(set|sub)\.([1-9]\d*)")


def point_name(point: Point) -> str:
    """Name of an operating point: ``infllm-8`` or ``utaca-64-sub.16``."""
    return "-".join(part for part in (point.method, str(point.budget), point.policy) if part)
