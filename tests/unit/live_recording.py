"""A recording of a trainer that is scripted second by second and diagnosed while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun, Step
from ingero.diagnose.incidents.incident_changes import Change
from ingero.diagnose.live import LiveDiagnosis
from ingero.events import STATES
from ingero.ops import OPS
from ingero.store.reader import open_reader
from ingero.store.writing import tables

SECOND_NS = 1_000_000_000
HEALTHY = Step()
HOGGED = Step(return_delay_ms=2.5, sync={"runq": 2.5, "sleep": 5.0})
WAITING = Step(idle_ms=4.0, idle={"sleep": 4.0})  # for its next item, even at best
QUICK = Step(busy_ms=2.0)
QUICK_HOGGED = Step(busy_ms=2.0, return_delay_ms=20.0, sync={"runq": 20.0, "sleep": 1.0})


Hog = Callable[[ScriptedRun, Actor, int], None]


class Live:
    """A recording second by second; `changes` by the second after which they were seen."""

    def __init__(self, run: ScriptedRun, diagnosis: LiveDiagnosis) -> None:
        self._run, self._look, self.tracker = run, diagnosis.look, diagnosis.tracker
        self._trainer = run.process(100, "python")
        self._second = 0
        self.changes: list[tuple[int, Change]] = []

    def seconds(
        self,
        count: int,
        step: Step = HEALTHY,
        *,
        hog: Hog | None = None,
        busy_s: float = 1.0,
        is_looked_at: bool = True,
        is_last: bool = False,
        has_time: bool = True,
    ) -> None:
        for _ in range(count):
            second, self._second = self._second, self._second + 1
            self._run.train(self._trainer, second, second + busy_s, step)
            clocks = {f"{name}_ns": 0 for name in STATES}
            self._run.append(
                tables.THREAD_STATE_SECONDS, start_ns=self._run.at(second), process=self._trainer.number, **clocks
            )
            if hog:
                hog(self._run, self._trainer, second)
            self._run.flush()
            if is_looked_at:
                self.changes += [(self._second, change) for change in self._look(is_last=is_last, has_time=has_time)]

    def passing(self, count: int) -> list[int]:
        """Processes that have come and gone by now; their numbers."""
        numbers = []
        for pid in range(5000, 5000 + count):
            at_ns = self._run.at(self._second)
            numbers.append(self._run.process(pid, "true", exit_ns=at_ns).number)
        return numbers

    def pause(self, count: int) -> None:
        """Seconds without a step, as in a long evaluation."""
        for _ in range(count):
            self._second += 1
            clocks = {f"{name}_ns": 0 for name in STATES}
            start_ns = self._run.at(self._second - 1)
            self._run.append(tables.THREAD_STATE_SECONDS, start_ns=start_ns, process=self._trainer.number, **clocks)
            self._run.flush()
            self.changes += [(self._second, change) for change in self._look()]

    def open_sync(self, *, since_s: float, at_s: float) -> None:
        """A wait for the GPU that is seen open."""
        op = next(op for op in OPS if op.name == "cudaStreamSynchronize")
        place = {"source": int(op.source), "op": op.code, "process": self._trainer.number}
        who = {"pid": self._trainer.pid, "tid": self._trainer.pid}
        times = {"time_ns": self._run.at(at_s), "since_ns": self._run.at(since_s)}
        self._run.append(tables.IN_FLIGHT, **place, **who, **times)

    def reported(self) -> list[tuple[str, str]]:
        return [(change.kind.value, change.incident.cause) for _, change in self.changes]


def stress(run: ScriptedRun, trainer: Actor, second: int) -> None:
    run.culprit(trainer, 900, "stress-ng", second, 300, switches=100)


@contextmanager
def live(folder: Path) -> Iterator[Live]:
    path = folder / "scene.db"
    with ScriptedRun(path, seconds=300) as run:
        run.flush()
        with open_reader(path) as reader:
            yield Live(run, LiveDiagnosis(reader, begin_ns=BEGIN_NS))
