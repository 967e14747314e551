"""What the benches do with an agent that does not begin."""

from __future__ import annotations

import signal
import subprocess

from bench.agent import at_most


def test_a_process_that_stands_still_is_ended_and_one_that_is_done_in_time_is_not() -> None:
    with subprocess.Popen(["sleep", "600"], text=True) as process:
        with at_most(60, process):
            pass
        assert process.poll() is None
        with at_most(0.1, process):
            process.wait()
    assert process.returncode == -signal.SIGABRT
