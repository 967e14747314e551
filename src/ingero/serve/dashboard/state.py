"""The begin of every typed answer: the time range, and whether it grows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """From, up to but without, and its length; unix ns."""

    begin_ns: int
    end_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """older_version: of Ingero, that wrote the file; empty: this one's format."""

    now_ns: int
    is_live: bool
    older_version: str
    window: TimeRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A level over time: one value for each of the answer's times; null: not known."""

    name: str
    values: list[int | None]
