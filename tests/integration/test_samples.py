"""Where threads are outside GPU calls: every line of the sampled program is known, and the recording must say it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.capture.loop.rings import Ring
from ingero.demo.workloads.program import Program
from ingero.discover.processes import read_process_id
from ingero.store.call_stacks import CallStack, StackBook
from ingero.store.reader import Reader, open_reader
from ingero.store.records import SampleTotals, Window
from tests.integration import sampled
from tests.integration.recording import left_behind
from tests.integration.targets import until, wait_for_end
from tests.integration.tracing import tracing

_SOURCE = Path(sampled.__file__)
_SECONDS = 5
_NS_PER_TICK = 10**9 // os.sysconf("SC_CLK_TCK")


def _line(mark: str) -> int:
    """The line of the program that ends in this comment."""
    lines = _SOURCE.read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


class Found:
    """The samples of one recording of the program."""

    def __init__(self, reader: Reader) -> None:
        window = reader.time_range()
        assert window
        self.window: Window = window
        self.samples = reader.samples(window)
        self.rows = reader.sample_rows(window)
        self.clocks = reader.thread_state_totals(window)
        self.parent = next(one.process for one in reader.processes() if one.parent_pid == os.getpid())
        self._book = StackBook(reader)
        self._book.read(one.stack_hash for one in self.samples)

    def stack(self, sample: SampleTotals) -> CallStack | None:
        return self._book.of(sample.stack_hash)

    def own_lines(self, *, state: str, is_parent: bool) -> Counter[tuple[str, int]]:
        """Samples by function and line of the program itself."""
        counts: Counter[tuple[str, int]] = Counter()
        for one in self.samples:
            if one.state == state and (one.process == self.parent) == is_parent:
                own = stack.own if (stack := self.stack(one)) else None
                counts[(own.function, own.line) if own else ("?", 0)] += one.count
        return counts


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    folder = tmp_path_factory.mktemp("samples")
    command = [sys.executable, str(_SOURCE), str(_SECONDS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as program, tracing(folder, pids=[program.pid]) as tracer:
        assert program.stdin
        program.stdin.write(b"\n")
        program.stdin.close()
        wait_for_end(tracer)
    with open_reader(tracer.database) as reader:
        yield Found(reader)


def test_a_forked_worker_that_burns_cpu_is_seen_at_its_loop(found: Found) -> None:
    lines = found.own_lines(state="run", is_parent=False)
    inside = sum(
        count
        for (function, line), count in lines.items()
        if function == "busy" and _line("busy loop begins") - 1 <= line <= _line("busy loop ends")
    )
    assert sum(lines.values()) > 20, lines
    assert inside >= 0.95 * sum(lines.values()), lines


def test_what_the_interpreter_itself_runs_is_known_to_be_no_call_of_a_library(found: Found) -> None:
    """Only so many stacks are copied: a sample inside of the interpreter's code needs none."""
    stacks = [(found.stack(one), one.count) for one in found.samples if one.state == "run"]
    counts = Counter[bool]()
    for stack, count in stacks:
        if stack and stack.own and stack.own.function == "busy":
            counts[stack.is_native_known and not stack.is_in_gpu_library] += count
    assert counts[True] >= 0.9 * counts.total(), counts


def test_the_time_that_samples_stand_for_is_the_time_that_threads_ran(found: Found) -> None:
    ran_ns = sum(one.clocks.run_ns for one in found.clocks)
    sampled_ns = sum(one.ns for one in found.samples if one.state == "run")
    assert 0.7 * ran_ns < sampled_ns < 1.3 * ran_ns


def test_a_thread_in_sleep_and_one_that_waits_for_a_queue_are_seen_at_their_lines(found: Found) -> None:
    lines = found.own_lines(state="sleep", is_parent=True)
    assert lines["napping", _line("napping")] > 5, lines
    assert lines["getting", _line("getting")] > 5, lines


def test_garbage_collection_is_told_from_the_line_that_it_came_at(found: Found) -> None:
    at_line: Counter[bool] = Counter()
    for one in found.samples:
        own = stack.own if (stack := found.stack(one)) else None
        if one.state == "run" and own and own.line == _line("collecting"):
            at_line[one.is_collecting] += one.count
    assert at_line[True] > 20
    assert at_line[True] >= 0.95 * at_line.total(), at_line


def test_no_sample_of_a_thread_that_does_not_collect_says_so(found: Found) -> None:
    assert not [one for one in found.samples if one.is_collecting and one.process != found.parent]


def test_rows_and_sums_agree(found: Found) -> None:
    assert int(found.rows["weight_ns"].sum()) == sum(one.ns for one in found.samples)
    assert (found.rows["time_ns"][1:] >= found.rows["time_ns"][:-1]).all()


def test_without_stacks_no_clock_is_attached() -> None:
    with KernelSide(KernelSizes()) as kernel:
        kernel.start()
        assert kernel.samples is None


def test_when_the_overhead_limiter_has_switched_stacks_off_nothing_is_sampled() -> None:
    busy_loop = "print('up', flush=True)\nwhile True: pass"
    with (
        KernelSide(KernelSizes(), with_stacks=True) as kernel,
        Program([sys.executable, "-c", busy_loop], environment=dict(os.environ)) as program,
        Ring(kernel.maps["samples"], kernel.layouts.dtype("sample_record", header_bytes=8)) as ring,
    ):
        kernel.start()
        identity = read_process_id(program.pid)
        assert identity
        slot = kernel.enroll(program.pid, identity.start_ticks * _NS_PER_TICK)
        until(lambda: len(ring.drain()) > 0, "the busy process is sampled")
        kernel.maps["stacks_off"].update(struct.pack("<I", 0), struct.pack("<I", 1))
        assert kernel.are_stacks_off
        ring.drain()
        _run_for_ticks(program.pid, 20)
        assert len(ring.drain()) == 0
        kernel.release(program.pid, slot)
        assert "targets" not in left_behind(kernel)


def _run_for_ticks(pid: int, ticks: int) -> None:
    """Until a process has used so many clock ticks of CPU time more."""

    def used() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    begin = used()
    until(lambda: used() - begin >= ticks, "it has run")
