"""What `trace` shows while it records: one line, or one JSON object, per second."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.capture.losses import MEANINGS
from ingero.capture.recorder import Recorder
from ingero.capture.second import Second
from ingero.ops import BY_ID, Kind
from ingero.store.vocabulary import CLOCKS
from ingero.units import format_count, format_ns

Echo = Callable[[str], None]
_TOP = 3
_SHORTEST_RATE_S = 0.5  # over less, a rate is noise


class View(Protocol):
    """Something that shows a recording while it goes on."""

    def started(self, recorder: Recorder, kernel: KernelSide) -> None:
        """Probes are attached."""

    def second(self, second: Second) -> None:
        """A second has been stored."""

    def finished(self, recorder: Recorder, path: Path | None) -> None:
        """Everything is stored; path: the database, None if nothing was kept."""


class _Totals:
    """Sums over the recording."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.call_ns: Counter[str] = Counter()
        self.culprits: Counter[str] = Counter()
        self.clocks_ns = np.zeros(len(CLOCKS), np.int64)
        self.records = self.epochs = 0
        self.began_s = time.monotonic()

    def add(self, second: Second) -> None:
        for cell in second.cells:
            name = BY_ID[cell.op].name
            if not cell.growth["count"]:
                continue
            self.calls[name] += int(cell.growth["count"])
            self.call_ns[name] += int(cell.growth["sum_ns"])
        for charge in second.charges:
            if charge.culprit_pid:
                self.culprits[f"{charge.culprit_name}[{charge.culprit_pid}]"] += charge.ns
        self.clocks_ns += second.clocks_ns
        self.records += second.records
        self.epochs += len(second.epochs)


class LineView:
    """Plain lines."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self._totals = _Totals()

    def started(self, recorder: Recorder, kernel: KernelSide) -> None:
        """What is traced, and what could not be."""
        attached = sum(result.is_attached for result in recorder.probes)
        self._echo(f"tracing {len(recorder.targets)} processes, {attached} probes ({kernel.mode.value})")
        for target in recorder.targets:
            if target.identity:
                self._echo(f"  {target.name} [{target.pid}], {target.identity}")
        for copy in recorder.libraries.copies:
            self._echo(f"  {copy.mapped_path}")
        for result in recorder.probes:
            if result.site and result.reason:
                self._echo(f"  not probed: {result.site.symbol}: {result.reason}")
        for missing in kernel.unavailable:
            self._echo(f"  not available: {missing.name}: {missing.reason}")
        self._echo("")

    def second(self, second: Second) -> None:
        """Calls, waiting for the device, and who took the CPU."""
        self._totals.add(second)
        parts = [
            time.strftime("%H:%M:%S", time.localtime(second.time_ns / 1e9)),
            f"{second.targets} processes",
            _rate(second),
            f"device wait {format_ns(_sync_ns(second))}",
            f"runnable {format_ns(int(second.clocks_ns[CLOCKS.index('runq')]))}",
        ]
        taken = Counter[str]()
        for charge in second.charges:
            if charge.culprit_pid:
                taken[charge.culprit_name] += charge.ns
        parts += [f"{name} took {format_ns(ns)}" for name, ns in taken.most_common(_TOP) if ns > 1_000_000]
        if second.in_flight:
            parts.append(f"{second.in_flight} calls open for over 1 s")
        if second.losses:
            parts.append("lost: " + ", ".join(f"{name} {count}" for name, count in second.losses.items()))
        self._echo("  ".join(parts))

    def finished(self, recorder: Recorder, path: Path | None) -> None:
        """The closing summary."""
        totals = self._totals
        elapsed = time.monotonic() - totals.began_s
        self._echo("")
        self._echo(f"{elapsed:.1f} s, {format_count(totals.calls.total())} calls, {totals.epochs} drains of the device")
        for name, ns in totals.call_ns.most_common(6):
            self._echo(f"  {name:28} {format_count(totals.calls[name]):>12} calls {format_ns(ns):>10}")
        self._echo("threads of the targets, summed:")
        for index, clock in enumerate(CLOCKS):
            if totals.clocks_ns[index]:
                self._echo(f"  {clock:12} {format_ns(int(totals.clocks_ns[index])):>10}")
        for name, ns in totals.culprits.most_common(_TOP):
            self._echo(f"  while runnable, {name} ran {format_ns(ns)}")
        for name, count in recorder.seconds.losses_total.items():
            self._echo(f"  lost or repaired: {name} {format_count(count)}: {MEANINGS.get(name, '')}")
        if path:
            self._echo(f"recorded to {path}: look at it with  ingero explain --db {path}")


class JsonView:
    """One JSON object per line."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo

    def started(self, recorder: Recorder, kernel: KernelSide) -> None:
        """Type `started`."""
        self._write(
            "started",
            processes=[target.pid for target in recorder.targets],
            identities={target.pid: target.identity for target in recorder.targets if target.identity},
            libraries=[copy.mapped_path for copy in recorder.libraries.copies],
            probes=sum(result.is_attached for result in recorder.probes),
            mode=kernel.mode.value,
            unavailable={missing.name: missing.reason for missing in kernel.unavailable},
        )

    def second(self, second: Second) -> None:
        """Type `second`."""
        calls: Counter[str] = Counter()
        for cell in second.cells:
            calls[BY_ID[cell.op].name] += int(cell.growth["count"])
        self._write(
            "second",
            time_unix_ns=second.time_ns,
            elapsed_s=round(second.elapsed_s, 6),
            processes=second.targets,
            threads=second.threads,
            calls=dict(calls),
            records=second.records,
            epochs=len(second.epochs),
            in_flight=second.in_flight,
            clocks_ns={clock: int(second.clocks_ns[index]) for index, clock in enumerate(CLOCKS)},
            culprits=[
                {"pid": charge.culprit_pid, "name": charge.culprit_name, "ns": charge.ns} for charge in second.charges
            ],
            losses=second.losses,
        )

    def finished(self, recorder: Recorder, path: Path | None) -> None:
        """Type `finished`."""
        self._write("finished", database=str(path) if path else None, losses=dict(recorder.seconds.losses_total))

    def _write(self, kind: str, **fields: object) -> None:
        self._echo(json.dumps({"type": kind, "version": 1, **fields}))


def _rate(second: Second) -> str:
    """Calls a second; of the last, short one just the calls."""
    if second.elapsed_s < _SHORTEST_RATE_S:
        return f"{format_count(second.calls)} calls"
    return f"{format_count(second.calls / second.elapsed_s)} calls/s"


def _sync_ns(second: Second) -> int:
    return sum(int(cell.growth["sum_ns"]) for cell in second.cells if BY_ID[cell.op].kind & Kind.DRAIN)
