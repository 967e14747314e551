"""A process whose memory does not answer: whoever reads its command line, environment or mappings waits for ever."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.agent import waited_s
from ingero.capture.foreign.readers import ForeignReaders, nursery
from ingero.capture.loop.watchdog import STANDS_STILL_S
from ingero.discover import waiting
from ingero.discover.interpreters import Interpreter, UnreadableInterpreter
from tests.integration.hostile_programs import OTHER
from tests.integration.targets import breakpoints, rows, simulation, until
from tests.integration.test_process_pickup import sites
from tests.integration.tracing import tracing
from tests.integration.withheld import KINDS, withholding

pytestmark = pytest.mark.integration
_SECONDS = 3
_CONTINUED = re.compile(r"the agent's loop continued after ([0-9.]+) s")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_target", [False, True], ids=["found", "given"])
def test_others_are_recorded_and_the_loss_is_said(tmp_path: Path, kind: str, *, is_target: bool) -> None:
    mine = simulation(tmp_path)
    library = mine.libraries / "libcudart.so.12"
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, library],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=mine.environment,
    )  # fmt: skip
    assert other.stdin
    try:
        with withholding(tmp_path, kind) as held:
            pids = [other.pid, held] if is_target else []
            with tracing(tmp_path, pids=pids, options=["--stack"]) as tracer:
                until(lambda: bool(breakpoints(other.pid, sites(library))), "the other's library is probed")
                other.stdin.write("\n")
                other.stdin.flush()
                for _ in range(_SECONDS):
                    tracer.wait_for("second")
                while "is withheld" not in tracer.stderr_text():
                    tracer.wait_for("second")
                other.terminate()
                made = int(other.communicate()[0])
                tracer.wait_for("second")
                without_cpu_s = waited_s(tracer.pid)
                drops = tracer.stop()
                stderr = tracer.stderr_text()
    finally:
        other.kill()
        other.wait()
    stood_still_s = [float(seconds) - STANDS_STILL_S for seconds in _CONTINUED.findall(stderr)]
    assert sum(stood_still_s) <= without_cpu_s, "where it stands still it is for want of a CPU"
    assert drops["memory_files_given_up"] > 0
    assert f"the memory of process {held} is withheld" in stderr
    counted = rows(
        tmp_path / "recording.db",
        "SELECT sum(count) FROM raw_op_stats JOIN raw_processes p USING (process) WHERE p.pid = ?",
        other.pid,
    )
    assert counted == [(made,)]
    frames = rows(
        tmp_path / "recording.db",
        "SELECT frames FROM raw_stacks JOIN raw_processes p USING (process) WHERE p.pid = ?",
        other.pid,
    )
    assert any("<module>" in text for (text,) in frames), "others have stacks"


def test_it_ends_in_time_where_a_target_holds_its_memory(tmp_path: Path) -> None:
    with withholding(tmp_path, "exec") as held:
        with tracing(tmp_path, pids=[held], options=["--stack", "--duration=2s"]) as tracer:
            tracer.wait_for("finished")
            assert tracer.process.wait() == 0
        assert Path(f"/proc/{held}").exists(), "it is there still"


@pytest.mark.parametrize("kind", KINDS)
def test_check_comes_to_its_end_and_says_who_does_not_answer(tmp_path: Path, kind: str) -> None:
    with withholding(tmp_path, kind) as held:
        done = subprocess.run(
            [sys.executable, "-m", "ingero.cli.main", "check", "--json"], capture_output=True, text=True, check=False
        )
        assert Path(f"/proc/{held}").exists(), "it is there still"
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["calls of libcuda"]["section"] == "probes", "the last section"
    if kind == "exec":  # the other one withholds nothing that check asks of a process without libraries
        assert f"pid {held}" in rows["memory withheld"]["found"]


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_is_withheld_costs_what_is_asked_of_its_process_only(tmp_path: Path, kind: str) -> None:
    with withholding(tmp_path, kind) as held, nursery() as makes, ForeignReaders(makes) as foreign:
        reader, me = foreign.native.memory, os.getpid()
        own = reader.interpreter(me)
        with pytest.raises(TimeoutError):
            reader.mapped(held, 1 << 20, 8)
        unread = reader.interpreter(held)
        assert isinstance(unread, UnreadableInterpreter)
        assert unread.is_starting, "it is asked again when it answers"
        (wait,) = foreign.waits.waits(held, [held])
        assert wait
        assert wait.kind == waiting.OTHER, "nothing is known of it but that it waits"
        assert foreign.waits.pipes([held, me], "none").missing == {held}
        assert not reader.may_probe()
        assert isinstance(own, Interpreter)
        assert reader.interpreter(me) == own
        assert len(foreign.waits.waits(me, [me])) == 1
        assert foreign.drops()["memory_files_given_up"] >= 2
