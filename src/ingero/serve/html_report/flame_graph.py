"""Recorded stacks as a flame graph: outermost function on top, as wide as the time below it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ingero.serve.dashboard.stacks import Node
from ingero.serve.html_report.markup import Markup, element
from ingero.units import format_count, format_ns, format_percent

MAX_FRAMES = 600
DEEPEST = 48
_ROW = 18  # pixels
_MIN_FOR_TEXT = 0.02  # of the width: less has no room for a word


def flame_graph(root: Node, label: str) -> tuple[Markup, int]:
    """The SVG image, and the number of frames left out: the narrowest, and those below the 48th level."""
    chosen, left_out = _widest(root)
    rows = 1 + max((depth for _, depth, _ in chosen), default=0)
    frames = (_frame(node, depth, begin_ns, root.ns) for node, depth, begin_ns in chosen)
    picture = element(
        "svg", frames, width="100%", height=rows * _ROW, role="img", aria_label=label, class_="flame"
    )  # fmt: skip
    return picture, left_out


def _widest(root: Node) -> tuple[list[tuple[Node, int, int]], int]:
    """Frames, widest first, each after the one that called it: node, row, and where it begins in ns."""
    number = 0
    waiting = [(-root.ns, number, root, 0, 0)]
    chosen: list[tuple[Node, int, int]] = []
    while waiting and len(chosen) < MAX_FRAMES:
        _, _, node, depth, begin_ns = heapq.heappop(waiting)
        chosen.append((node, depth, begin_ns))
        if depth + 1 >= DEEPEST:
            continue
        for child in node.children:
            number += 1
            heapq.heappush(waiting, (-child.ns, number, child, depth + 1, begin_ns))
            begin_ns += child.ns
    return chosen, _count(root) - len(chosen)


def _count(node: Node) -> int:
    return 1 + sum(map(_count, node.children))


def _frame(node: Node, depth: int, begin_ns: int, total_ns: int) -> Markup:
    share = node.ns / max(total_ns, 1)
    title = f"{node.name}: {format_ns(node.ns)}, {format_percent(share)}, {format_count(node.count)} times"
    own = " own" if node.is_own else ""
    box = element("rect", width="100%", height=_ROW - 1, class_=f"frame-{node.kind}{own}")
    return element(
        "svg", element("title", title), box, _name(node, share), x=f"{100 * begin_ns / max(total_ns, 1):.3f}%",
        y=depth * _ROW, width=f"{100 * share:.3f}%", height=_ROW - 1,
    )  # fmt: skip


def _name(node: Node, share: float) -> Iterator[Markup]:
    if share >= _MIN_FOR_TEXT:
        yield element("text", node.name[:160], x=3, y=13)
