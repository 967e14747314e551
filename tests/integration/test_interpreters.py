"""Which interpreter a process has, and that its frames will be found where we look."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingero.discover.interpreters import Interpreter, UnreadableInterpreter, find_interpreter
from tests.integration.interpreters import include_folder, interpreters

_ROOT = Path(__file__).parents[2]
_TRACE_ME = 0  # PTRACE_TRACEME
_BUILT_IN = Path("/usr/bin/python3").resolve()  # of Debian and Ubuntu: CPython is in the program
_LOADER = Path("/lib64/ld-linux-x86-64.so.2")
OLDER = sorted((Path.home() / ".pyenv/versions").glob("3.6.*/bin/python3"))
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


@contextmanager
def _running(command: list[object], **variables: str) -> Iterator[int]:
    """A program that has printed a line, and waits."""
    environment = {**os.environ, **variables}
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_an_interpreter_whose_file_was_replaced_meanwhile_is_found(tmp_path: Path) -> None:
    """What a package manager does: it renames a new file over the one that runs."""
    program = Path(shutil.copy(_BUILT_IN, tmp_path / "python3.11"))
    with _running([program, *_SLEEP]) as pid:
        Path(shutil.copy(_BUILT_IN, tmp_path / "new")).rename(program)
        assert str(Path(f"/proc/{pid}/exe").readlink()).endswith(" (deleted)")
        assert isinstance(find_interpreter(pid), Interpreter)


@pytest.mark.skipif(not _LOADER.exists(), reason="no loader of glibc on this machine")
def test_an_interpreter_that_its_loader_has_started_is_found() -> None:
    with _running([_LOADER, _BUILT_IN, *_SLEEP]) as pid:
        assert "ld-linux" in str(Path(f"/proc/{pid}/exe").readlink())
        found = find_interpreter(pid)
    assert isinstance(found, Interpreter), found
    assert found.file == _BUILT_IN.name


def test_a_copy_of_an_interpreter_under_another_name_is_found(tmp_path: Path) -> None:
    program = Path(shutil.copy(_BUILT_IN, tmp_path / "trainer"))
    prefix = subprocess.check_output([_BUILT_IN, "-c", "import sys; print(sys.prefix)"], text=True)
    with _running([program, *_SLEEP], PYTHONHOME=prefix.strip()) as pid:
        assert isinstance(find_interpreter(pid), Interpreter)


_HOLDER = """
#include <stdio.h>
#include <dlfcn.h>
#include <unistd.h>
%s
int main(int argc, char **argv)
{
	puts(argc == 1 || dlopen(argv[1], RTLD_NOW) ? "ready" : dlerror());
	fflush(stdout);
	pause();
	return 0;
}
"""
_CODE = 'asm(".pushsection .text; .skip 2000000, 0x90; .popsection");'


def _built(folder: Path, source: str, name: str, *flags: str) -> Path:
    (folder / "source.c").write_text(source)
    subprocess.run(["gcc", *flags, "-o", folder / name, folder / "source.c", "-ldl"], check=True)
    return folder / name


@pytest.mark.parametrize(("name", "kind"), [("libpypy3.9-c.so", "PyPy keeps"), ("libpythonvm.so", "GraalPy keeps")])
def test_a_python_that_is_no_cpython_is_named(tmp_path: Path, name: str, kind: str) -> None:
    holder = _built(tmp_path, _HOLDER % "", "holder")
    with _running([holder, _built(tmp_path, _CODE, name, "-shared", "-fPIC")]) as pid:
        found = find_interpreter(pid)
    assert isinstance(found, UnreadableInterpreter)
    assert kind in found.reason
    assert "CPython" in found.reason, "the way out"


@pytest.mark.skipif(not OLDER, reason="no Python older than 3.7 on this machine")
def test_a_python_older_than_any_that_is_supported_is_named() -> None:
    with _running([OLDER[0], *_SLEEP]) as pid:
        found = find_interpreter(pid)
    assert isinstance(found, UnreadableInterpreter)
    assert "older than any that is supported: 3.8" in found.reason


def test_a_python_that_is_linked_in_with_hidden_symbols_is_named(tmp_path: Path) -> None:
    tag = 'const char tags[] = "\\0cpython-310\\0";'
    with _running([_built(tmp_path, _HOLDER % f"{_CODE}\n{tag}", "trainer")]) as pid:
        found = find_interpreter(pid)
    assert isinstance(found, UnreadableInterpreter)
    assert "Python 3.10 is linked into it" in found.reason
    assert "--export-dynamic" in found.reason


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
    command = [sys.executable, str(_ROOT / "tools" / "gen_python_layouts.py"), "--check", *given]
    subprocess.run(command, check=True)
