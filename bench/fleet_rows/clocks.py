"""F22, F23: orders across nodes, a shift that is put right, drift and steps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.fleet_rows.figures import Figure, listed, run
from bench.fleet_rows.files import rows
from tests.unit.clock_runs import day_of_drift, order_pairs, step_through_a_proxy
from tests.unit.fleet_nodes import record_node, serving_node

_SHIFT_NS = 37_000_000
_PAIRS = 10_000
_MS = 1_000_000


def order(folder: Path) -> Iterator[Figure]:
    """F22: a node 37 ms ahead in a file that was fetched; and orders that are said of simulated pairs."""
    names = ("right", "ahead")
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                serving_node(
                    record_node(folder / f"{name}.db", name, is_late=place == 1),
                    has_tls=False,
                    clock=_ahead(place * _SHIFT_NS),
                )
            )
            for place, name in enumerate(names)
        ]
        out = str(folder / "bundle.db")
        done = run("fleet", "bundle", "--nodes", listed(nodes), "--no-tls", "--around", "ahead", "-o", out)
    yield Figure(f"fleet bundle: exit code {done.exit_code}", done.exit_code == 0)
    offsets = {
        name: (off, bound) for name, off, bound in rows(Path(out), "SELECT node, offset_ns, bound_ns FROM node_clocks")
    }
    for place, name in enumerate(names):
        offset_ns, bound_ns = offsets[name]
        error_ns = abs(offset_ns - place * _SHIFT_NS)
        yield Figure(
            f"node {place * 37} ms ahead, by the file: {error_ns / 1e3:.0f} us off, bound {bound_ns / 1e3:.0f} us",
            error_ns <= bound_ns,
        )
    pairs = order_pairs(random.Random(6), _PAIRS)
    yield Figure(
        f"{_PAIRS:,} pairs: {pairs.wrong} wrong orders, {pairs.said:,} said, of {pairs.clear:,} that are apart by more "
        "than both bounds twice",
        pairs.wrong == 0 and pairs.said >= pairs.clear,
    )


def _ahead(shift_ns: int) -> Callable[[], int]:
    return lambda: time.time_ns() + shift_ns


def drift_and_steps(_: Path) -> Iterator[Figure]:
    """F23: 50 ppm over a simulated day; a step of 2 s over real sockets, through a proxy that delays."""
    errors_ns, ppm = day_of_drift(random.Random(7))
    worst_ns = max(error_ns for error_ns, _ in errors_ns)
    outside = sum(error_ns > bound_ns for error_ns, bound_ns in errors_ns)
    yield Figure(
        f"50 ppm over 24 h, an estimate an hour: {worst_ns / 1e6:.2f} ms off at most, {outside} of {len(errors_ns):,} "
        f"outside the bound, drift {ppm:.1f} ppm",
        worst_ns <= _MS and outside == 0,
    )
    found = step_through_a_proxy(random.Random(5), _SHIFT_NS, 2_000 * _MS)
    yield Figure(
        f"step of 2 s: {found.step_ns / 1e9:.4f} s to {found.step_bound_ns / 1e6:.2f} ms is said; "
        f"{found.before_error_ns / 1e3:.0f} us off before it (bound {found.before_bound_ns / 1e3:.0f}), "
        f"{found.after_error_ns / 1e3:.0f} us after it (bound {found.after_bound_ns / 1e3:.0f})",
        found.is_right(2_000 * _MS),
    )
