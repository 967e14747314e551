"""Samples every GPU once a second in a thread of its own: a driver that hangs costs samples, never the recording.

While a query is in the driver, others may wait for its locks. So what queries took there is counted, and they come the
less often the longer they take: at most 1% of the time is spent in them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from ingero.capture.records.rows import Sink
from ingero.discover import kernel_clock
from ingero.discover.gpus import Gpu, GpuSample, Nvml, open_nvml
from ingero.discover.processes import read_thread_name
from ingero.store.writing import tables
from ingero.store.writing.tables import Row

logger = logging.getLogger(__name__)

PERIOD_NS = 1_000_000_000
_HELD = 16  # answers that the recorder may leave unread
_FRESH_PERIODS = 3  # an answer that is older says nothing about now
_PARTING_S = 0.2  # what the end of a recording waits for an answer that is under way
_MW_PER_W = 1000
_MAX_SHARE = 0.01  # of the time, in the driver
_SAVED_NS = 100_000_000  # of that time that queries may take at once: one that was held up costs nothing
_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a CPU, ns waiting for one, time slices
_LOG_SPACING = 5  # periods between two questions, from which on it is said

Listed = Mapping[int, Mapping[str, str]]  # pid -> GPU (uuid) -> MIG slice, "" for none


@dataclass(frozen=True, slots=True)
class _NvmlAnswer:
    """One answer of NVML. time_ns: when it was complete; asked_ns: time in the driver; unanswered: GPUs without one."""

    time_ns: int
    asked_ns: int
    unanswered: int
    sampled: tuple[tuple[Gpu, GpuSample], ...]


class PollPace:
    """How long to wait between NVML calls, by how long they took: times in ns of one clock."""

    def __init__(self, period_ns: int, now_ns: int) -> None:
        self._period_ns, self._credit_ns, self._at_ns = period_ns, float(_SAVED_NS), now_ns

    def rest_ns(self, now_ns: int, took_ns: int) -> int:
        """The pause after a call that took `took_ns` in the driver and has just returned, ns."""
        grown_ns = _MAX_SHARE * (now_ns - self._at_ns)
        self._credit_ns, self._at_ns = min(self._credit_ns + grown_ns, float(_SAVED_NS)) - took_ns, now_ns
        owed_ns = int(max(-self._credit_ns, 0.0) / _MAX_SHARE)
        return max(self._period_ns - took_ns, self._period_ns // 10, owed_ns)


class GpuSamples:
    """Samples GPUs and writes `raw_gpu_samples`. Start it once; `stop` leaves a hung call behind.

    unix_ns_of: wall-clock time of a monotonic one. listed: gets the processes that the driver lists on each GPU.
    opened: opens NVML. clock: monotonic ns.
    """

    def __init__(
        self,
        sink: Sink,
        unix_ns_of: Callable[[int], int],
        *,
        listed: Callable[[Listed], None] = lambda _: None,
        opened: Callable[[], AbstractContextManager[Nvml]] = open_nvml,
        period_ns: int = PERIOD_NS,
        clock: Callable[[], int] = kernel_clock.monotonic_ns,
    ) -> None:
        self._sink, self._unix_ns_of, self._listed, self._opened = sink, unix_ns_of, listed, opened
        self._period_ns, self._clock = period_ns, clock
        self._stop = threading.Event()
        self._answers: deque[_NvmlAnswer] = deque()
        self._unread = self._unread_logged = 0
        self._answered_ns = self._latest_ns = clock()
        self._latest: tuple[tuple[Gpu, GpuSample], ...] = ()
        self._missed = 0
        self._names: dict[int, str] = {}
        self._pace, self._due_ns, self._logged_ns = PollPace(period_ns, clock()), clock(), 0
        self._has_nothing_to_say = False
        # a daemon: the interpreter does not wait for a driver that hangs
        self._thread = threading.Thread(target=self._run, name="ingero-gpus", daemon=True)

    def start(self) -> None:
        """Starts the sampling thread."""
        self._answered_ns = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Stops sampling."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_PARTING_S)

    def take(self, nvml: Nvml) -> None:
        """Takes one sample of each GPU for `write`; one that finds no room counts as missing."""
        by_uuid = {gpu.uuid: gpu for gpu in nvml.gpus}
        begin_ns, waited_ns = self._clock(), _waited_for_cpu_ns()
        sampled = tuple((by_uuid[sample.uuid], sample) for sample in nvml.sample())
        now_ns = self._clock()
        asked_ns = max(now_ns - begin_ns - (_waited_for_cpu_ns() - waited_ns), 0)
        rest_ns = self._pace.rest_ns(now_ns, asked_ns)
        self._due_ns, self._answered_ns = now_ns + rest_ns, now_ns
        self._log_pace(rest_ns, asked_ns)
        if len(self._answers) < _HELD:
            self._answers.append(_NvmlAnswer(now_ns, asked_ns, len(nvml.gpus) - len(sampled), sampled))
        else:
            self._unread += len(nvml.gpus)

    def _log_pace(self, rest_ns: int, asked_ns: int) -> None:
        if rest_ns < max(_LOG_SPACING * self._period_ns, 2 * self._logged_ns):
            return
        self._logged_ns = rest_ns
        logger.warning(
            "NVML took %.0f ms in the driver to read the GPUs once: the next read is in %.0f s",
            asked_ns / 1e6,
            rest_ns / 1e9,
        )

    @property
    def latest(self) -> tuple[tuple[Gpu, GpuSample], ...]:
        """The latest samples; none once the last answer is old."""
        fresh_ns = max(_FRESH_PERIODS * self._period_ns, self._due_ns - self._answered_ns + self._period_ns)
        return self._latest if self._clock() - self._latest_ns <= fresh_ns else ()

    def write(self) -> int:
        """Writes the samples since the last call; returns how many are missing since then.

        While nothing at all is answered, that is one a second.
        """
        rows: list[Row] = []
        missing = 0
        while self._answers:
            answer = self._answers.popleft()
            missing += answer.unanswered
            self._latest_ns, self._latest = answer.time_ns, answer.sampled
            self._listed(_listed(sample for _, sample in answer.sampled))
            for gpu, sample in answer.sampled:
                rows += self._row(self._unix_ns_of(answer.time_ns), answer.asked_ns, gpu, sample)
        self._sink.append(tables.GPU_SAMPLES, rows)
        unread, self._unread_logged = self._unread - self._unread_logged, self._unread
        return missing + unread + self._newly_missed()

    def _newly_missed(self) -> int:
        """Samples missed since the last call; one that is late by up to one period is not missed."""
        expected_ns = max(self._answered_ns, self._due_ns - self._period_ns)
        unanswered = 0 if self._has_nothing_to_say else (self._clock() - expected_ns) // self._period_ns - 1
        if unanswered > 0 and not self._missed:
            logger.warning("NVML is not responding: no GPU samples until it does")
        newly, self._missed = max(0, unanswered - self._missed), max(0, unanswered)
        return newly

    def _row(self, time_ns: int, asked_ns: int, gpu: Gpu, sample: GpuSample) -> Sequence[Row]:
        return tables.GPU_SAMPLES.rows(
            1,
            session=self._sink.session,
            time_ns=time_ns,
            uuid=gpu.uuid,
            gpu_index=gpu.index,
            asked_ns=asked_ns,
            gpu_percent=sample.busy_percent,
            memory_percent=sample.memory_busy_percent,
            memory_used_bytes=sample.memory_used_bytes,
            memory_total_bytes=sample.memory_total_bytes,
            sm_clock_mhz=sample.sm_clock_mhz,
            max_sm_clock_mhz=gpu.max_sm_clock_mhz,
            throttle_reasons=sample.throttle_reasons,
            power_mw=None if sample.power_w is None else round(sample.power_w * _MW_PER_W),
            temperature_c=sample.temperature_c,
            pcie_generation=sample.pcie_generation,
            pcie_lanes=sample.pcie_lanes,
            processes=json.dumps(self._processes(sample), separators=(",", ":")),
        )

    def _processes(self, sample: GpuSample) -> list[tuple[int, int | None, int | None, str]]:
        """Each process with its memory, its share of the multiprocessors, and its name, which is read once."""
        pids = sorted({*sample.processes, *sample.sm_percents})
        self._names = {pid: self._names.get(pid) or read_thread_name(pid) for pid in pids}
        return [(pid, sample.processes.get(pid), sample.sm_percents.get(pid), self._names[pid]) for pid in pids]

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # whatever the binding raises costs GPU samples only, and they are counted
            logger.warning("NVML: %s: no more GPU samples", error)

    def _watch(self) -> None:
        with self._opened() as nvml:
            self._has_nothing_to_say = not nvml.gpus  # the session says so, and why
            while nvml.gpus:
                self.take(nvml)
                if self._stop.wait((self._due_ns - self._answered_ns) / 1e9):
                    return


def _waited_for_cpu_ns() -> int:
    """Run-queue wait of the calling thread, ns: a busy host is not a slow driver. 0 where not known."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _listed(samples: Iterable[GpuSample]) -> Listed:
    found: dict[int, dict[str, str]] = {}
    for sample in samples:
        for pid in sample.processes:
            found.setdefault(pid, {})[sample.uuid] = sample.slices.get(pid, "")
    return found
