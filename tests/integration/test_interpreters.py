"""Which interpreter a process has, and that its frames will be found where we look."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingero.discover.interpreters import Interpreter, UnreadableInterpreter, find_interpreter
from tests.integration.interpreters import include_folder, interpreters

_ROOT = Path(__file__).parents[2]
_TRACE_ME = 0  # PTRACE_TRACEME
_SLEEP = ["-c", "print(flush=True); import time; time.sleep(60)"]


def _found(program: Path, code: list[str]) -> object:
    with subprocess.Popen([program, *code], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        found = find_interpreter(process.pid)
        process.kill()
    return found


@pytest.mark.parametrize("name", interpreters())
def test_an_interpreter_is_found_and_proven(name: str) -> None:
    found = _found(interpreters()[name], _SLEEP)
    assert isinstance(found, Interpreter), found
    assert f"{found.version[0]}.{found.version[1]}." in name


def test_a_process_without_python_has_no_interpreter() -> None:
    assert _found(Path("/bin/sh"), ["-c", "echo; kill -STOP $$"]) is None


def test_a_program_whose_libraries_are_not_mapped_yet_may_become_one() -> None:
    """Stopped as it begins: a tracer that is told of the start at once must look again."""
    process = os.fork()
    if not process:
        ctypes.CDLL(None).ptrace(_TRACE_ME, 0, None, None)
        os.execv(sys.executable, [sys.executable, *_SLEEP])
    os.waitpid(process, 0)
    try:
        found = find_interpreter(process)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert isinstance(found, UnreadableInterpreter), found
    assert found.is_starting


def test_an_interpreter_whose_code_objects_differ_is_refused() -> None:
    """What a debug build looks like: the interpreter's own table of members says something else."""
    code = """
import ctypes, time
members = ctypes.c_void_p.from_address(id(type((lambda: 0).__code__)) + 240).value
name = ctypes.c_char_p.from_address(members).value
while name != b'co_filename':
    members += 40
    name = ctypes.c_char_p.from_address(members).value
import mmap
page = members & -4096
ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), 8192, 3)
ctypes.c_ssize_t.from_address(members + 16).value += 16
print(flush=True)
time.sleep(60)
"""
    found = _found(Path(sys.executable).resolve(), ["-c", code])
    assert isinstance(found, UnreadableInterpreter)
    assert "laid out differently" in found.reason


def test_a_process_that_ends_meanwhile_is_no_error() -> None:
    for delay_s in (0, 0.001, 0.003, 0.01, 0.02):
        with subprocess.Popen([sys.executable, "-S", "-c", "pass"]) as process:
            time.sleep(delay_s)
            found = find_interpreter(process.pid)
            process.kill()
        assert found is None or isinstance(found, (Interpreter, UnreadableInterpreter))


def test_the_table_of_layouts_is_what_the_headers_say() -> None:
    folders = [include_folder(program) for name, program in interpreters().items() if name.endswith("pyenv")]
    given = [str(folder) for folder in folders if folder]
    command = [sys.executable, _ROOT / "tools" / "gen_python_layouts.py", "--check", *given]
    subprocess.run(command, check=True)
