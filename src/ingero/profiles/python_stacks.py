"""The Python frames around each call, from a profiler's intervals of Python functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ingero.profiles.intervals import innermost
from ingero.profiles.model import Array, Frame

MAX_DEPTH = 256  # the deepest stack of the research has 70 frames; deeper frames are left out
_PLACE = re.compile(r"(.{1,4000})\((\d{1,9})\): (.*)", re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MODULE = "nn.Module: "  # encloses the module's own functions, which have frames, too


def frame_of(name: str) -> Frame | None:
    """The frame that a profiler's name describes; None for one that adds nothing."""
    if name.startswith(_MODULE):
        return None
    place = _PLACE.fullmatch(name)
    if place:
        return Frame(place[1], int(place[2]), place[3])
    return Frame("", 0, _ADDRESS.sub("", name))


def stacks_of_frames(calls: Array, frames: Array, texts: Sequence[str]) -> tuple[Array, tuple[tuple[Frame, ...], ...]]:
    """For each call the index of its stack, and the stacks, innermost frame first; the first is empty."""
    tree = _StackTree(texts)
    found = np.zeros(len(calls), np.int32)
    frames = frames[np.lexsort((-frames["end_ns"], frames["start_ns"], frames["tid"]))]
    for tid in np.unique(frames["tid"]).tolist():
        mine = np.flatnonzero(calls["tid"] == tid)
        mine = mine[np.argsort(calls["start_ns"][mine], kind="stable")]
        rows = frames[frames["tid"] == tid]
        parents, around = innermost(rows, calls["start_ns"][mine])
        paths = tree.paths(parents, rows["name"].tolist())
        found[mine] = [paths[row] if row >= 0 else 0 for row in around]
    used, number = np.unique(np.concatenate([np.zeros(1, found.dtype), found]), return_inverse=True)
    return number[1:].astype(np.int32), tuple(map(tree.stack, used.tolist()))


def stacks_of_operators(
    calls: Array, operators: Array, texts: Sequence[str]
) -> tuple[Array, tuple[tuple[Frame, ...], ...]]:
    """The stacks of calls from operators named by their whole stack, innermost first: `a.py(1): f;b.py(2): g`."""
    found = np.zeros(len(calls), np.int32)
    numbers: dict[int, int] = {}
    operators = operators[np.lexsort((-operators["end_ns"], operators["start_ns"], operators["tid"]))]
    for tid in np.unique(operators["tid"]).tolist():
        mine = np.flatnonzero(calls["tid"] == tid)
        mine = mine[np.argsort(calls["start_ns"][mine], kind="stable")]
        rows = operators[operators["tid"] == tid]
        names = rows["name"].tolist()
        _, around = innermost(rows, calls["start_ns"][mine])
        found[mine] = [numbers.setdefault(names[row], len(numbers) + 1) if row >= 0 else 0 for row in around]
    stacks = [tuple(filter(None, map(frame_of, texts[name].split(";")[:MAX_DEPTH]))) for name in numbers]
    return found, ((), *stacks)


class _StackTree:
    """Stacks as a tree: each node is a function called from the stack of its parent."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._nodes: dict[tuple[int, int], int] = {}
        self._keys: list[tuple[int, int]] = [(0, 0)]  # the keys of the nodes
        self._depths = [0]
        self._frames: dict[int, Frame | None] = {}

    def paths(self, parents: Sequence[int], names: Sequence[int]) -> list[int]:
        """The node of each frame, outer ones first. parents: indexes of the frames around them."""
        found: list[int] = []
        for parent, name in zip(parents, names, strict=True):
            outer = found[parent] if parent >= 0 else 0
            found.append(self._node(outer, name) if self._depths[outer] < MAX_DEPTH else outer)
        return found

    def _node(self, outer: int, name: int) -> int:
        key = (outer, name)
        if key not in self._nodes:
            self._nodes[key] = len(self._depths)
            self._keys.append(key)
            self._depths.append(self._depths[outer] + 1)
        return self._nodes[key]

    def stack(self, node: int) -> tuple[Frame, ...]:
        """The frames of a node, innermost first."""
        found: list[Frame] = []
        while node:
            node, name = self._keys[node]
            if name not in self._frames:
                self._frames[name] = frame_of(self._texts[name])
            frame = self._frames[name]
            if frame:
                found.append(frame)
        return tuple(found)
