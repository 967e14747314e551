"""Lines reach their reader whole."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingero.cli.logs import logging_to
from ingero.cli.output import Output, echo
from ingero.store.opening.locations import Owner

_LINES = 40
_LINE_BYTES = 10_000
_WRITER = f"""
import signal
from ingero.cli.output import Output
signal.signal(signal.SIGUSR1, lambda *_: None)
with Output() as output:
    for number in range({_LINES}):
        output.line(str(number).rjust({_LINE_BYTES}))
"""


_FLOOD = 20_000_000 // _LINE_BYTES
_FLOODER = f"""
import sys
from ingero.cli.output import Output
with Output() as output:
    for number in range({_FLOOD}):
        output.line(str(number).rjust({_LINE_BYTES}))
    print("handed over", file=sys.stderr, flush=True)
"""


def test_a_reader_that_does_not_read_keeps_nobody_waiting_and_what_is_dropped_is_told() -> None:
    command = [sys.executable, "-c", _FLOODER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        assert writer.stderr
        assert writer.stderr.readline() == "handed over\n"
        lines = list(writer.stdout)
        told = writer.stderr.read()
    assert {len(line) for line in lines} == {_LINE_BYTES + 1}
    assert f"{_FLOOD - len(lines)} lines were not printed" in told


def test_on_a_full_disk_the_lines_are_counted_and_the_program_goes_on() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", _WRITER], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, f"{_LINES} lines were not printed: No space left on device\n")


def test_a_command_on_a_full_disk_says_so() -> None:
    command = [sys.executable, "-m", "ingero.cli.main", "version"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "error: cannot write the output: No space left on device\n  hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_does_not_cut_a_line_that_waits_for_its_reader() -> None:
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, "-c", _WRITER], stdout=subprocess.PIPE, text=True, env=unbuffered) as writer:
        assert writer.stdout
        time.sleep(1)  # all of it is more than a pipe holds: the writer waits in the middle of a line
        writer.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        lines = list(writer.stdout)
    assert [line.strip() for line in lines] == [str(number) for number in range(_LINES)]
    assert {len(line) for line in lines} == {_LINE_BYTES + 1}


def test_lines_and_messages_show_what_would_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Output() as output, logging_to(None, debug=False, owner=Owner(uid=0, gid=0, home=Path("/"))):
        output.line("a\x1b[2J\nFORGED \u202e")
        logging.getLogger("ingero.test").warning("b\x1b[2J\nFORGED")
        echo("c\x1b[2J\nFORGED", err=True)
    out, err = capsys.readouterr()
    assert out == "a\\x1b[2J\\nFORGED \\u202e\n"
    logged, echoed = err.splitlines()
    assert logged.endswith(r"b\x1b[2J\nFORGED")
    assert echoed == r"c\x1b[2J\nFORGED"
