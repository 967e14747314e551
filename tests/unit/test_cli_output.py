"""Lines reach their reader whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

_LINES = 40
_LINE_BYTES = 10_000
_WRITER = f"""
import signal
from ingero.cli.output import Output
signal.signal(signal.SIGUSR1, lambda *_: None)
output = Output()
for number in range({_LINES}):
    output.line(str(number).rjust({_LINE_BYTES}))
"""


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
