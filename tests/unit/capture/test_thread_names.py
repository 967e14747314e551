"""Names of threads are kept for the records still to come, not for good."""

from __future__ import annotations

from typing import cast

import numpy as np

from ingero.attach.objects import object_path
from ingero.capture.loop import second
from ingero.capture.loop.second import SecondReader
from ingero.capture.processes.traced_processes import TracedProcesses
from ingero.decode.btf import btf_of
from tests.unit.kept_rows import MemorySink

LAYOUTS = btf_of(object_path("layouts"))
AT_ONCE = 100


class NoTracedProcesses:
    """Nobody."""

    def at(self, _slot: int) -> None:
        """The traced process with this slot."""


def test_names_of_threads_that_ended_with_their_processes_are_let_go() -> None:
    reader = SecondReader.__new__(SecondReader)
    reader._traced_processes, reader._sink = cast(TracedProcesses, NoTracedProcesses()), MemorySink()
    reader._threads_seen, reader.thread_names = {}, {}
    for first in range(1, 10 * second._FEW_THREADS, AT_ONCE):
        threads = np.zeros(AT_ONCE, LAYOUTS.dtype("thread_dump"))
        threads["tid"], threads["comm"] = np.arange(first, first + AT_ONCE), b"worker"
        reader._write_threads(threads, 0)
        assert reader.thread_names[first] == "worker"
        reader._threads_seen.clear()  # as `forget` does when their process has ended
    assert len(reader.thread_names) <= 2 * AT_ONCE + second._FEW_THREADS
