"""The compact form of an answer: members without a value are left out, ratios and averages have four digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DIGITS = 4


def compact(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out null and empty members at every depth; zero and false stay, for they say something."""
    return {name: _short(value) for name, value in answer.items() if not _is_empty(value)}


def _short(value: Any) -> Any:  # any JSON value
    if isinstance(value, Mapping):
        return compact(value)
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _is_empty(value: Any) -> bool:  # any JSON value
    return value is None or (isinstance(value, (str, list, Mapping)) and not value)
