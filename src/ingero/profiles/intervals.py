"""Finds the intervals of a thread that lie inside others."""

from __future__ import annotations

import itertools

import numpy as np

from ingero.profiles.model import Array


def owners(rows: Array) -> Array:
    """For each row the index of the outermost row of its thread (pid, tid) that it lies in, which may be itself.

    One that begins where another ends is not inside it: old profiles have whole us.
    """
    order = np.lexsort((-rows["end_ns"], rows["start_ns"], rows["tid"], rows["pid"]))
    sorted_rows = rows[order]
    found = np.arange(len(rows))
    for begin, end in _threads(sorted_rows):
        found[order[begin:end]] = order[begin:end][_owners_of_thread(sorted_rows[begin:end])]
    return found


def _threads(rows: Array) -> list[tuple[int, int]]:
    if not len(rows):
        return []
    is_new = (np.diff(rows["tid"]) != 0) | (np.diff(rows["pid"]) != 0)
    edges = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(rows)]
    return list(itertools.pairwise(edges))


def _owners_of_thread(rows: Array) -> Array:
    latest = np.maximum.accumulate(rows["end_ns"])
    before = np.concatenate([[-1], latest[:-1]])
    is_inside = (rows["end_ns"] <= before) & (rows["start_ns"] < before)
    return np.maximum.accumulate(np.where(is_inside, 0, np.arange(len(rows))))


def innermost(rows: Array, times: Array) -> tuple[list[int], list[int]]:
    """The index of the innermost row around each row, and around each time; -1: none.

    rows: nested, of one thread, sorted by start and then longest first. times: ascending.
    """
    around_rows, around_times = [-1] * len(rows), [-1] * len(times)
    open_rows: list[int] = []
    begins, ends = rows["start_ns"].tolist(), rows["end_ns"].tolist()
    at = 0
    for index, time in enumerate(times.tolist()):
        while at < len(begins) and begins[at] <= time:
            _close(open_rows, ends, begins[at])
            around_rows[at] = open_rows[-1] if open_rows else -1
            open_rows.append(at)
            at += 1
        _close(open_rows, ends, time)
        around_times[index] = open_rows[-1] if open_rows else -1
    return around_rows, around_times


def _close(open_rows: list[int], ends: list[int], time: int) -> None:
    while open_rows and ends[open_rows[-1]] <= time:
        open_rows.pop()
