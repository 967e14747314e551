"""Records the processes of one user within the test process, so that other users' processes do not interfere."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ingero.attach.kernel_side import MAX_PROCESSES, KernelSide, KernelSizes
from ingero.capture.loop.recorder import Recorder, RecorderOptions
from ingero.capture.loop.second import SecondOfCounts
from ingero.capture.loop.session import session_facts
from ingero.store.writing.writer import Writer
from tests.integration.targets import rows

# nobody, and those before: no workload of this machine belongs to them, and each of pytest's workers has its own
OTHER_USER = 65534 - int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
SETTLE_S = 1.3  # a second is read, and what ended in it is let go


@dataclass
class Recording:
    """A recording, complete when `record_user` has returned."""

    recorder: Recorder
    kernel: KernelSide
    database: Path
    drops: Counter[str] = field(default_factory=Counter)
    seconds: list[SecondOfCounts] = field(default_factory=list)
    left_behind: dict[str, int] = field(default_factory=dict)

    def counts(self) -> dict[int, int]:
        """Calls by process id."""
        return dict(
            rows(
                self.database,
                "SELECT p.pid, sum(s.count) FROM raw_op_stats s JOIN raw_processes p USING (process) GROUP BY 1",
            )
        )


def left_behind(kernel: KernelSide) -> dict[str, int]:
    """The non-empty maps of processes in the kernel."""
    hashes = ("targets", "enrolling", "culprits", "positions", "allocations")
    found = {name: len(list(kernel.maps[name].items())) for name in hashes}
    found["slots"] = sum(kernel.process_at(slot) is not None for slot in range(MAX_PROCESSES))
    for name in ("cell_keys", "kernels", "gpu_streams", "allocation_sites", "memory_totals"):
        found[name] = int(np.count_nonzero(np.frombuffer(kernel.maps[name].memory(), np.uint64)))
    return {name: count for name, count in found.items() if count}


def record_user(
    folder: Path, during: Callable[[Recording], None], *, uid: int = OTHER_USER, settle_s: float = SETTLE_S
) -> Recording:
    """Records while `during` runs in a thread of its own; a failure in it fails the test."""
    database = folder / "recording.db"
    failures: list[BaseException] = []
    ended: list[float] = []

    def act() -> None:
        try:
            during(recording)
        except BaseException as error:
            failures.append(error)
        ended.append(time.monotonic())

    def on_second(second: SecondOfCounts) -> None:
        recording.drops.update(second.drops)
        recording.seconds.append(second)

    with (
        KernelSide(KernelSizes()) as kernel,
        Writer(database, session=session_facts(()), node="node", owner=(os.getuid(), os.getgid())) as writer,
        Recorder(kernel, writer, RecorderOptions(uid=uid)) as recorder,
    ):
        recording = Recording(recorder, kernel, database)
        recorder.start()
        thread = threading.Thread(target=act)
        thread.start()
        recorder.run(
            should_stop=lambda: bool(ended) and time.monotonic() > ended[0] + settle_s,
            on_second=on_second,
        )
        thread.join()
        recording.left_behind = left_behind(kernel)
        writer.flush()
    if failures:
        raise failures[0]
    return recording
