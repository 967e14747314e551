"""What processes that come and go cost the agent: 300 that start, call and end in 30 s, while 20 others run.

An agent that traces one user's processes runs in this very process, first with the 20 idle, then while the others come
and go; the difference is the price. Counts are compared with what the programs were told to call.

Run as root: python -m bench.churn [--short-lived N] [--staying N] [--seconds S] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from bench.agent import require_quiet_kernel
from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.capture.loop.recorder import Recorder, RecorderOptions
from ingero.capture.loop.session import session_facts
from ingero.store.writing.writer import Writer
from tests.integration import burst
from tests.integration.burst import BETWEEN, Burst
from tests.integration.callers import build_library
from tests.integration.recording import OTHER_USER, left_behind
from tests.integration.targets import rows

CALLS, SHORT_CALLS, THREADS = 2000, 50, 2
SETTLE_S = 4.0  # readings after the last end until its slot is free again


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Meter:
    """CPU of the agent's threads in this process, the caller's own left out."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), self._now_s()

    @staticmethod
    def _now_s() -> float:
        return time.process_time() - time.thread_time()

    def percent(self) -> float:
        """The CPU use of the agent in percent of one core, since the start."""
        return 100 * (self._now_s() - self._cpu_s) / (time.monotonic() - self._wall_s)


def measure(folder: Path, *, short_lived: int, staying: int, seconds: float) -> dict[str, object]:
    """Makes one run and returns its figures."""
    library, program = build_library(folder / "lib"), burst.build(folder / "burst")
    stay = [Burst([program, library, THREADS, CALLS, 0]) for _ in range(staying)]
    one_of_them = f"{program} {library} {THREADS} {SHORT_CALLS} 0"
    command = f"for i in $(seq {short_lived}); do {one_of_them} & sleep {seconds / short_lived}; done; wait"
    drops: Counter[str] = Counter()
    printed: list[str] = []
    figures: dict[str, object] = {}
    ended = threading.Event()

    def script() -> None:
        time.sleep(2)  # the first readings
        meter = Meter()
        time.sleep(seconds / 3)
        idle, opened = meter.percent(), descriptors()
        for one in stay[::2]:
            one.go()
        meter = Meter()
        done = subprocess.run(
            [*BETWEEN, "sh", "-c", command], user=OTHER_USER, capture_output=True, text=True, check=True
        )
        busy = meter.percent()
        printed.extend(done.stdout.split())
        for one in stay:
            one.end()
        time.sleep(SETTLE_S)
        figures.update(
            agent_cpu_percent_idle=round(idle, 2),
            agent_cpu_percent_churn=round(busy, 2),
            agent_cpu_percent_added=round(busy - idle, 2),
            left_in_maps=left_behind(kernel),
            descriptors_left=descriptors() - opened,
        )
        ended.set()

    database = folder / "churn.db"
    with (
        KernelSide(KernelSizes()) as kernel,
        Writer(database, session=session_facts(()), node="node", owner=(0, 0)) as writer,
        Recorder(kernel, writer, RecorderOptions(uid=OTHER_USER)) as recorder,
    ):
        recorder.start()
        thread = threading.Thread(target=script)
        thread.start()
        recorder.run(should_stop=ended.is_set, on_second=lambda second: drops.update(second.drops))
        thread.join()
        writer.flush()
    found = dict(
        rows(database, "SELECT p.pid, sum(s.count) FROM raw_op_stats s JOIN raw_processes p USING (process) GROUP BY 1")
    )
    return {
        "staying_exact": f"{sum(found.get(one.pid) == THREADS * CALLS for one in stay)} of {staying}",
        "short_lived_exact": f"{sum(found.get(int(pid)) == THREADS * SHORT_CALLS for pid in printed)} of {short_lived}",
        **figures,
        "drops": dict(drops),
    }


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short-lived", type=int, default=300)
    parser.add_argument("--staying", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    require_quiet_kernel()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        figures = measure(folder, short_lived=options.short_lived, staying=options.staying, seconds=options.seconds)
    if options.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            print(f"{key.replace('_', ' '):28} {value}")


if __name__ == "__main__":
    main()
