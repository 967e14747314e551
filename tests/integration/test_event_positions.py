"""What an event stood for is forgotten with the program that recorded it, though handle and slot are used again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.integration.targets import rows, wait_for_end
from tests.integration.tracing import tracing

_LIBRARY = """
int cudaEventRecord(void *event, void *stream) { (void)stream; return event == 0; }
int cudaEventSynchronize(void *event) { return event == 0; }
"""
_HANDLE = 0x1000
_PROGRAM = f"""
import ctypes, os, sys
code, path, *has_recorded = sys.argv[1:]
library = ctypes.CDLL(path)
print("loaded", flush=True)
sys.stdin.readline()
if not has_recorded:
    library.cudaEventRecord(ctypes.c_void_p({_HANDLE}), None)
library.cudaEventSynchronize(ctypes.c_void_p({_HANDLE}))
if not has_recorded:
    os.execv(sys.executable, [sys.executable, "-c", code, code, path, "recorded"])
"""


def test_the_next_program_of_a_process_does_not_wait_for_an_event_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "library.c").write_text(_LIBRARY)
    library = tmp_path / "libcudart.so.12"
    flags = ["-O0", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.12"]
    subprocess.run(["gcc", *flags, "-o", library, tmp_path / "library.c"], check=True)
    command = [sys.executable, "-c", _PROGRAM, _PROGRAM, library]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin
        assert program.stdout
        program.stdout.readline()
        with tracing(tmp_path, pids=[program.pid]) as tracer:
            for _ in range(2):
                program.stdin.write("\n")
                program.stdin.flush()
                program.stdout.readline()
            program.stdin.close()
            program.wait()
            wait_for_end(tracer)
    lost = dict(rows(tracer.database, "SELECT counter, sum(count) FROM raw_drops GROUP BY counter"))
    assert lost.get("event_position_unknown") == 1
