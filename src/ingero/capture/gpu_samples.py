"""Samples every GPU once a second in a thread of its own: a driver that hangs costs samples, never the recording."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from ingero.capture.rows import Sink
from ingero.discover.gpus import Gpu, GpuSample, Nvml, open_nvml
from ingero.store import tables
from ingero.store.tables import Row

logger = logging.getLogger(__name__)

PERIOD_NS = 1_000_000_000
_HELD = 16  # answers that the recorder may leave unread
_FRESH_PERIODS = 3  # an answer that is older says nothing about now
_PARTING_S = 0.2  # what the end of a recording waits for an answer that is under way
_MW_PER_W = 1000

Listed = Mapping[int, Mapping[str, str]]  # pid -> GPU (uuid) -> MIG slice, "" for none
_Answer = tuple[int, int, tuple[tuple[Gpu, GpuSample], ...]]  # time, GPUs that did not answer, those that did


class GpuSamples:
    """Writes `raw_gpu_samples`. Start it once; `stop` leaves a hung call behind.

    unix_ns_of: wall-clock time of a monotonic one. listed: is told which processes the driver has on which GPUs.
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
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._sink, self._unix_ns_of, self._listed, self._opened = sink, unix_ns_of, listed, opened
        self._period_ns, self._clock = period_ns, clock
        self._stop = threading.Event()
        self._answers: deque[_Answer] = deque()
        self._unread = self._unread_told = 0
        self._answered_ns = self._latest_ns = clock()
        self._latest: tuple[tuple[Gpu, GpuSample], ...] = ()
        self._missed = 0
        self._has_nothing_to_say = False
        # a daemon: the interpreter does not wait for a driver that hangs
        self._thread = threading.Thread(target=self._run, name="ingero-gpus", daemon=True)

    def start(self) -> None:
        """Begins to ask."""
        self._answered_ns = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Asks no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_PARTING_S)

    def take(self, nvml: Nvml) -> None:
        """Asks for one sample of each GPU, and keeps it for `write`; what it has no room for is missing."""
        by_uuid = {gpu.uuid: gpu for gpu in nvml.gpus}
        sampled = tuple((by_uuid[sample.uuid], sample) for sample in nvml.sample())
        self._answered_ns = self._clock()
        if len(self._answers) < _HELD:
            self._answers.append((self._answered_ns, len(nvml.gpus) - len(sampled), sampled))
        else:
            self._unread += len(nvml.gpus)

    @property
    def latest(self) -> tuple[tuple[Gpu, GpuSample], ...]:
        """The GPUs that answered last; none once the last answer is old."""
        return self._latest if self._clock() - self._latest_ns <= _FRESH_PERIODS * self._period_ns else ()

    def write(self) -> int:
        """Writes what was answered since the last call; returns how many samples are missing since then.

        While nothing at all is answered, that is one a second.
        """
        rows: list[Row] = []
        missing = 0
        while self._answers:
            time_ns, silent, sampled = self._answers.popleft()
            missing += silent
            self._latest_ns, self._latest = time_ns, sampled
            self._listed(_listed(sample for _, sample in sampled))
            for gpu, sample in sampled:
                rows += self._row(self._unix_ns_of(time_ns), gpu, sample)
        self._sink.append(tables.GPU_SAMPLES, rows)
        unread, self._unread_told = self._unread - self._unread_told, self._unread
        return missing + unread + self._newly_missed()

    def _newly_missed(self) -> int:
        """An answer may come late by one period, and costs nothing then."""
        silent = 0 if self._has_nothing_to_say else (self._clock() - self._answered_ns) // self._period_ns - 1
        if silent > 0 and not self._missed:
            logger.warning("NVML does not answer: GPU samples are missing until it does")
        newly, self._missed = max(0, silent - self._missed), max(0, silent)
        return newly

    def _row(self, time_ns: int, gpu: Gpu, sample: GpuSample) -> Sequence[Row]:
        return tables.GPU_SAMPLES.rows(
            1,
            session=self._sink.session,
            time_ns=time_ns,
            uuid=gpu.uuid,
            gpu_index=gpu.index,
            gpu_percent=sample.busy_percent,
            memory_percent=sample.memory_busy_percent,
            memory_used_bytes=sample.memory_used_bytes,
            memory_total_bytes=sample.memory_total_bytes,
            sm_clock_mhz=sample.sm_clock_mhz,
            max_sm_clock_mhz=gpu.max_sm_clock_mhz,
            throttle_reasons=sample.throttle_reasons,
            power_mw=None if sample.power_w is None else round(sample.power_w * _MW_PER_W),
            temperature_c=sample.temperature_c,
            processes=json.dumps(sorted(sample.processes.items()), separators=(",", ":")),
        )

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # whatever the binding raises costs GPU samples only, and they are counted
            logger.warning("NVML: %s: no more GPU samples", error)

    def _watch(self) -> None:
        with self._opened() as nvml:
            self._has_nothing_to_say = not nvml.gpus  # the session says so, and why
            while nvml.gpus:
                begin_ns = self._clock()
                self.take(nvml)
                rest_ns = self._period_ns - (self._answered_ns - begin_ns)
                if self._stop.wait(max(rest_ns, self._period_ns // 10) / 1e9):
                    return


def _listed(samples: Iterable[GpuSample]) -> Listed:
    found: dict[int, dict[str, str]] = {}
    for sample in samples:
        for pid in sample.processes:
            found.setdefault(pid, {})[sample.uuid] = sample.slices.get(pid, "")
    return found
