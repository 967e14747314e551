"""Servers: without requests they lose nothing; what keeps them from answering is found all the same."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

FRONT = 105
CLIENT = Actor(number=0, pid=800, name="client")


def waiting_for_requests(
    run: ScriptedRun, server: Actor, return_delay_ms: float = 0.05, sync: dict[str, float] | None = None
) -> None:
    """The engine sleeps 10 to 50 ms before each step; the front wakes it, which has slept in epoll for the last 6."""
    front = Actor(number=server.number, pid=FRONT, name="python")
    now, pause = QUIET_S, 10
    while now < LENGTH_S:
        step = Step(idle_ms=pause + 0.5, idle={"sleep": pause}, return_delay_ms=return_delay_ms, sync=sync or {})
        ((begin, _, now),) = run.train(server, now, now + 1e-6, step)
        end = begin + pause / 1e3
        run.off_cpu(server, begin, end, "sleep", waker=front)
        run.off_cpu(server, end - 0.006, end - 0.0002, "sleep", waker=CLIENT, tid=FRONT)
        pause = pause % 50 + 10


def test_a_server_without_requests_has_no_finding(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, waiting_for_requests)) == []


def test_a_server_that_a_hog_stalls_is_found(tmp_path: Path) -> None:
    def stalled(run: ScriptedRun, server: Actor) -> None:
        waiting_for_requests(run, server, return_delay_ms=8.05, sync={"runq": 8.0})
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.culprit(server, 900, "hog", second, 200)

    diagnosis = diagnosed(tmp_path, stalled)
    assert causes(diagnosis) == ["cpu-contention"]


def _spinning(run: ScriptedRun, server: Actor, native: tuple[str, ...]) -> None:
    """The engine is on a CPU at one line for 300 ms before each burst of steps; every third sample is in `native`."""
    line = [("/srv/engine.py", 12, "next_requests")]
    at = QUIET_S
    for burst in range(14):
        run.train(server, at, at + 1e-6, Step(idle_ms=300.5))
        for tick in range(1, 30):
            run.sample(server, at + tick / 100, line, ms=10, native=native if (tick + burst) % 3 == 0 else ())
        run.train(server, at + 0.307, at + 0.42, Step())
        at += 0.425


def test_a_server_that_asks_its_sockets_without_ever_sleeping_has_no_finding(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, server: _spinning(run, server, ("__select",)))) == []


def test_what_computes_at_that_line_instead_is_found(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, server: _spinning(run, server, ("memcpy",)))
    assert causes(diagnosis) == ["host-bound"]
