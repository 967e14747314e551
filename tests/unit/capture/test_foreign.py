"""Files of this very process, read by processes without rights: the same answers as when it reads them itself."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.attach.objects import object_path
from ingero.capture.foreign.memory_reader import MemoryReader
from ingero.capture.foreign.native_reader import NativeReader
from ingero.capture.foreign.readers import OPENER, READER, ForeignReaders, nursery
from ingero.capture.foreign.shares import NOBODY, UserShares
from ingero.capture.libraries.library_readers import SandboxedLibraryReader
from ingero.capture.stacks.mapped_files import MappedFiles
from ingero.capture.stacks.python_layouts import layout_row
from ingero.decode.btf import btf_of
from ingero.decode.native.unwinder import Ending, ThreadCopy
from ingero.demo.gpusim.build import build
from ingero.discover.elf import UnreadableElfError
from ingero.discover.interpreters import Interpreter, UnreadableInterpreter
from ingero.discover.libraries import LibraryScanner, PutOffError
from ingero.discover.library_files import StubLibraryError
from ingero.discover.library_reader import LibraryReader
from ingero.discover.memory import ProcessMemory
from ingero.discover.memory_files import LaunchedWith, MemoryFiles
from ingero.discover.rooted import open_regular
from ingero.sandbox.process import NoAnswerError, SandboxedProcess

_BOMB = "_Z1fSt4pairIiiE" + "".join(f"S_I{f'S{digit}_' * 2}E" for digit in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:33])


@pytest.fixture(scope="module")
def foreign() -> Iterator[ForeignReaders]:
    """Who reads."""
    with nursery() as makes, ForeignReaders(makes) as foreign:
        yield foreign


def _address() -> int:
    return ctypes.cast(ctypes.CDLL("libc.so.6").qsort_r, ctypes.c_void_p).value or 0


def test_functions_have_the_same_names(foreign: ForeignReaders) -> None:
    names = []
    for reader in (foreign.native, NativeReader()):
        files = MappedFiles(reader)
        module = files.add(1, os.getpid()).module_at(_address())
        assert module
        assert module.image
        names.append(files.symbols.of(module.image).at(_address() - module.bias))
    assert names[0] == names[1]
    assert names[0]


def test_a_stack_is_unwound_alike_also_by_one_that_was_replaced(foreign: ForeignReaders) -> None:
    copy = ThreadCopy(
        machine=os.uname().machine,
        registers=[None] * 7 + [0x1000] + [None] * 8 + [_address()],
        is_pc_exact=True,
        stack_vaddr=0x1000,
        stack=bytes(4096),
        probed={},
    )
    space = MappedFiles(foreign.native).add(1, os.getpid())
    expected = NativeReader().unwind(copy, MappedFiles().add(1, os.getpid()))
    for _ in range(2):
        found = foreign.native.unwind(copy, space)
        assert (found.ending, found.detail, found.words) == (expected.ending, expected.detail, expected.words)
        assert [(one.address, one.lookup, one.decided_by) for one in found.frames] == [
            (one.address, one.lookup, one.decided_by) for one in expected.frames
        ]
        assert found.frames[0].module
        assert found.frames[0].module.name == "libc.so.6"
        for process in foreign._idle_s:
            process.close()


def test_code_of_no_file_ends_a_stack(foreign: ForeignReaders) -> None:
    copy = ThreadCopy(
        machine=os.uname().machine, registers=[0x10] * 17, is_pc_exact=True, stack_vaddr=0, stack=b"", probed={}
    )
    assert foreign.native.unwind(copy, MappedFiles(foreign.native).add(1, os.getpid())).ending is Ending.NO_FILE


def test_a_name_that_becomes_gigabytes_stays_as_it_is(foreign: ForeignReaders) -> None:
    foreign.drops()
    assert foreign.native.demangle(_BOMB) == _BOMB
    assert foreign.drops() == {"native_files_given_up": 1}
    assert foreign.native.demangle("_Z4gemmi") == "gemm(int)", "the next one is read"


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcudart.so.12", "libnccl.so.2"])
def test_probes_have_the_same_places(foreign: ForeignReaders, name: str) -> None:
    path = build() / name
    expected, found = (
        reader.sites(reader.identify_all(path, path.name)[0]) for reader in (LibraryReader(), foreign.libraries)
    )
    assert found.failure == expected.failure == ""
    assert found.report == expected.report
    assert found.naming == expected.naming


def test_drivers_that_do_not_answer_are_waited_for_ever_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """One user may map a dozen that sleep as they are loaded, which costs no CPU."""
    asked: list[float] = []

    def never(*_: object, timeout_s: float, **_more: object) -> str:
        asked.append(timeout_s)
        return "it did not answer"

    monkeypatch.setattr("ingero.capture.libraries.library_readers.ask_driver", never)
    monkeypatch.setattr("ingero.capture.libraries.library_readers._DRIVER_S", 1e-9)
    path = build() / "libcuda.so.1"
    with nursery() as makes, ForeignReaders(makes) as own:
        file = own.libraries.identify_all(path, path.name)[0]
        for _ in range(5):
            with own.libraries.on_behalf_of(os.getpid()):
                assert own.libraries.sites(file).failure == "it did not answer"
        with own.libraries.on_behalf_of(0):
            own.libraries.sites(file)
    assert [one / 1e-9 for one in asked] == pytest.approx([1, 0.5, 0.25, 0.125, 0.125, 1])


def test_a_damaged_library_is_refused_with_the_reason(foreign: ForeignReaders, tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(b"\x7fELF and nothing else")
    with pytest.raises(UnreadableElfError):
        foreign.libraries.identify_all(path, path.name)
    (problem,) = LibraryScanner(reader=foreign.libraries).add_on_disk([path])
    assert "no 64-bit" in problem.reason or "ends before" in problem.reason


def test_a_stub_made_for_linking_is_called_one(foreign: ForeignReaders, tmp_path: Path) -> None:
    stub = tmp_path / "stubs" / "libcuda.so"
    stub.parent.mkdir()
    shutil.copy(build() / "libcuda.so.1", stub)
    with pytest.raises(StubLibraryError, match="made for linking"):
        foreign.libraries.identify_all(stub, stub.name)


def test_who_has_used_up_the_share_is_put_off_and_others_are_not(foreign: ForeignReaders) -> None:
    del foreign
    shares = UserShares(most_s=0.2, per_s=0.1)
    shares.spend((1000, 0), 0.3)
    assert not shares.has_some((1000, 0))
    assert shares.has_some((1001, 0))
    assert not shares.has_some(NOBODY, spent_s=0.3)
    while not shares.has_some((1000, 0)):
        time.sleep(0.05)


def test_a_share_that_is_used_up_puts_off_before_anything_is_asked() -> None:
    shares = UserShares(most_s=0.2, per_s=0)
    with nursery() as makes, ForeignReaders(makes) as own:
        opener, reader = SandboxedProcess(makes, OPENER), SandboxedProcess(makes, READER)
        libraries = SandboxedLibraryReader(opener, reader, own.memory_files, shares, print)
        shares.spend(shares.owner(os.getpid()), 1)
        assert not libraries.may_read(os.getpid())
        with libraries.on_behalf_of(os.getpid()), pytest.raises(PutOffError):
            libraries.key(Path("/"))


def test_a_file_that_was_not_read_in_time_is_tried_three_times_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch, foreign: ForeignReaders
) -> None:
    reader = foreign.libraries
    monkeypatch.setattr("ingero.capture.libraries.library_readers._OPEN_S", 0.0)
    for error in (PutOffError, PutOffError, NoAnswerError, NoAnswerError):
        with pytest.raises(error):
            reader.key(Path("/nowhere/that/hangs"))
    monkeypatch.undo()
    assert reader.key(Path("/"))
    assert list(reader.keys([Path("/nowhere/that/hangs"), Path("/")])) == [None, reader.key(Path("/"))]


def test_many_files_of_which_one_does_not_answer_are_asked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a hundred on one mount cost half a second each, every second."""
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_bytes(b"a")
    with nursery() as makes, ForeignReaders(makes) as own:
        before = list(own.libraries.keys(paths))
        assert all(before)
        monkeypatch.setattr("ingero.capture.libraries.library_readers._OPEN_S", 0.0)
        paths[0].write_bytes(b"another")
        assert list(own.libraries.keys(paths)) == before, "nothing is taken for gone"
        assert own.drops() == {"library_files_given_up": 2}, "all at once, then the first"
        assert list(own.libraries.keys(paths)) == before
        assert own.drops() == {}
        monkeypatch.undo()
        assert list(own.libraries.keys(paths)) == before, "not before a minute has passed"
        own.libraries._keys_after_s = 0.0
        assert next(own.libraries.keys(paths)) == own.libraries.key(paths[0]) != before[0]


def test_what_a_process_was_started_with_is_the_same(foreign: ForeignReaders) -> None:
    files = MemoryFiles()
    assert foreign.memory_files.launched_with(os.getpid()) == files.launched_with(os.getpid())
    assert foreign.memory_files.maps(os.getpid()).splitlines()[0] == files.maps(os.getpid()).splitlines()[0]
    kernel_thread, gone = 2, 2**22 + 1
    for pid in (kernel_thread, gone):
        assert foreign.memory_files.launched_with(pid) == files.launched_with(pid)
    with pytest.raises(OSError, match=r"\w"):
        foreign.memory_files.maps(gone)


def test_memory_that_was_withheld_is_not_asked_for_again_at_once(
    monkeypatch: pytest.MonkeyPatch, foreign: ForeignReaders, caplog: pytest.LogCaptureFixture
) -> None:
    foreign.drops()
    files = foreign.memory_files
    monkeypatch.setattr("ingero.capture.foreign.memory_files._WALL_S", 0.0)
    with pytest.raises(TimeoutError):
        files.maps(os.getpid())
    monkeypatch.undo()
    with pytest.raises(BlockingIOError):
        files.maps(os.getpid())
    assert files.launched_with(os.getpid()) == LaunchedWith(None, None, is_withheld=True)
    assert foreign.drops() == {"memory_files_given_up": 3}
    assert [one.message for one in caplog.records if f"process {os.getpid()} is withheld" in one.message]
    assert files.maps(os.getppid()), "others are read"
    while files.launched_with(os.getpid()).is_withheld:
        time.sleep(0.05)
    assert files.maps(os.getpid())


@pytest.fixture(scope="module")
def sleeper() -> Iterator[tuple[int, Interpreter]]:
    """A Python that sleeps in a function, and its interpreter as it is read here and now."""
    with subprocess.Popen([sys.executable, "-c", _SLEEPER], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        while not (position := MemoryFiles().positions(process.pid, [process.pid])[0]) or not position.is_blocked:
            time.sleep(0.01)
        found = MemoryReader().interpreter(process.pid)
        assert isinstance(found, Interpreter)
        yield process.pid, found
        process.kill()


_SLEEPER = """
import sys
def inner():
    print(flush=True)
    sys.stdin.read()
def outer():
    inner()
outer()
"""


def _layout(interpreter: Interpreter) -> dict[str, int]:
    row = layout_row(interpreter, btf_of(object_path("layouts")).dtype("python_layout"))
    return {name: int(row[name][0]) for name in row.dtype.names or () if name != "pad"}


def _thread_pointer(pid: int, layout: dict[str, int]) -> int:
    """Of its only thread, as its interpreter knows it."""
    with ProcessMemory(pid) as memory:
        interpreter = memory.word(layout["runtime"] + layout["interpreters"])
        return memory.word(memory.word(interpreter + layout["interpreter_threads"]) + layout["thread_id"])


def test_an_interpreter_is_found_alike(foreign: ForeignReaders, sleeper: tuple[int, Interpreter]) -> None:
    reader = foreign.native.memory
    assert reader.interpreter(sleeper[0]) == sleeper[1]
    assert reader.interpreter(2) is None, "a thread of the kernel"
    assert reader.interpreter(2**22 + 1) is None, "it is gone"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"loaded\n")
        process.stdin.flush()
        process.stdout.readline()  # until then its libraries may still be loading
        assert reader.interpreter(process.pid) is None


def test_stacks_and_code_in_memory_are_read_alike(foreign: ForeignReaders, sleeper: tuple[int, Interpreter]) -> None:
    pid, interpreter = sleeper
    layout, reader, own = _layout(interpreter), foreign.native.memory, MemoryReader()
    pointers = [_thread_pointer(pid, layout) - layout["thread_bias"], 4096]
    for _ in range(2):  # the second time they are known there
        frames, nobody = reader.frames(pid, layout, interpreter.version, pointers)
        assert [(one.function, one.line) for one in frames] == [("inner", 5), ("outer", 7), ("<module>", 8)]  # type: ignore[union-attr]  # frames
        assert nobody == []
    assert reader.frames(pid, layout, interpreter.version, pointers) == own.frames(
        pid, layout, interpreter.version, pointers
    )
    assert reader.positions(pid, [pid, 2**22 + 1]) == own.positions(pid, [pid, 2**22 + 1])
    address = interpreter.code_type
    assert reader.mapped(pid, address, 100) == own.mapped(pid, address, 100)
    assert reader.code(pid, address, 1, layout) is own.code(pid, address, 1, layout) is None
    with pytest.raises(OSError, match=r"\w"):
        reader.mapped(pid, 4096, 8)
    if "interpreter.freed_code" not in interpreter.layout.offsets:
        places = [one.destructor(pid, interpreter) for one in (reader, own)]
        assert places[0].offset == places[1].offset
        assert os.stat(places[0].path).st_ino == os.stat(places[1].path).st_ino  # noqa: PTH116  # of descriptors


def test_a_ring_of_interpreters_has_an_end(foreign: ForeignReaders, sleeper: tuple[int, Interpreter]) -> None:
    layout = _layout(sleeper[1])
    ring = (ctypes.c_uint64 * 512)()
    ring[layout["interpreter_next"] // 8] = ctypes.addressof(ring)
    ring[511] = ctypes.addressof(ring)
    circles = {**layout, "runtime": ctypes.addressof(ring) + 511 * 8, "interpreters": 0, "interpreter_threads": 8 * 500}
    (why,) = foreign.native.memory.frames(os.getpid(), circles, sleeper[1].version, [1])
    assert why == "more than 256 interpreters"


def test_memory_that_takes_too_long_costs_the_stacks_of_its_process_only(
    monkeypatch: pytest.MonkeyPatch, foreign: ForeignReaders, sleeper: tuple[int, Interpreter]
) -> None:
    foreign.drops()
    pid, interpreter = sleeper
    layout, reader = _layout(interpreter), foreign.native.memory
    monkeypatch.setattr("ingero.capture.foreign.memory_reader._WALL_S", 0.0)
    monkeypatch.setattr("ingero.capture.foreign.memory_files._FIRST_PAUSE_S", 0.0)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            reader.frames(os.getpid(), layout, interpreter.version, [1])
    monkeypatch.undo()
    unread = reader.interpreter(os.getpid())
    assert isinstance(unread, UnreadableInterpreter)
    assert not unread.is_starting
    assert foreign.drops()["python_stacks_given_up"] == 3
    while not isinstance(found := reader.interpreter(pid), Interpreter):  # of its user, whose share is used up
        time.sleep(0.05)
    assert found == interpreter, "others are read"


def test_nothing_is_probed_after_memory_was_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    with nursery() as makes, ForeignReaders(makes) as own:
        assert own.native.memory.may_probe()
        monkeypatch.setattr("ingero.capture.foreign.memory_files._WALL_S", 0.0)
        with pytest.raises(TimeoutError):
            own.native.memory.mapped(os.getpid(), 4096, 8)
        unread = own.native.memory.interpreter(os.getpid())
        assert isinstance(unread, UnreadableInterpreter)
        assert unread.is_starting, "it may answer later"
        assert not own.native.memory.may_probe()


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_nothing_but_a_regular_file_is_opened(tmp_path: Path, what: str) -> None:
    path = {"pipe": tmp_path / "pipe", "device": Path("/dev/null"), "folder": tmp_path}[what]
    if what == "pipe":
        os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(path)


def test_no_link_leads_out_of_the_root_of_a_process(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        (tmp_path / "link").symlink_to("/proc/self/root/etc/hostname")
        with pytest.raises(OSError, match="links"):
            open_regular(Path(f"/proc/{process.pid}/root{tmp_path}/link"))
        process.kill()
