"""Libraries on disk that processes may load: found by a process that can be ended, each once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.capture.foreign.readers import ForeignReaders, nursery
from ingero.capture.libraries.disk_search import DiskSearch
from ingero.discover.disk_files import DiskFiles
from ingero.discover.library_search import library_copies_on_disk


@pytest.fixture(scope="module")
def foreign() -> Iterator[ForeignReaders]:
    with nursery() as makes, ForeignReaders(makes) as foreign:
        yield foreign


@pytest.fixture
def program(tmp_path: Path) -> Iterator[int]:
    """A process that says where its libraries are."""
    (tmp_path / "libcudart.so.12").write_bytes(b"one")
    (tmp_path / "libother.so").write_bytes(b"another")
    with subprocess.Popen(["sleep", "60"], env={"LD_LIBRARY_PATH": str(tmp_path)}) as process:
        yield process.pid
        process.kill()


def _taken(search: DiskSearch) -> list[Path]:
    return list(iter(search.take, None))


def test_a_library_is_handed_over_once_and_again_when_it_has_changed(
    foreign: ForeignReaders, program: int, tmp_path: Path
) -> None:
    library = tmp_path / "libcudart.so.12"
    search = DiskSearch(lambda: [program], [], foreign.memory_files, foreign.disk)
    search.search(well_known=False)
    assert _taken(search) == [library]
    search.search(well_known=False)
    assert _taken(search) == []
    search._programs.clear()
    search._executables.clear()
    library.unlink()
    library.write_bytes(b"a new one")
    os.utime(library, ns=(0, 0))
    search.search(well_known=False)
    assert _taken(search) == [library]


def test_the_same_is_found_as_here_and_now(foreign: ForeignReaders, program: int, tmp_path: Path) -> None:
    environs = [{"LD_LIBRARY_PATH": str(tmp_path)}]
    expected = DiskFiles().copies(Path("/"), environs=environs, has_well_known=False)
    assert foreign.disk.copies(Path("/"), environs=environs, has_well_known=False) == expected
    assert [one.path for one in expected] == [tmp_path / "libcudart.so.12"]
    assert foreign.disk.root(program) == foreign.disk.root(0) == DiskFiles().root(program)
    assert foreign.disk.present([tmp_path, tmp_path / "nothing"]) == [True, False]


def test_a_search_that_does_not_end_is_given_up_and_the_next_one_begun(
    monkeypatch: pytest.MonkeyPatch,
    foreign: ForeignReaders,
    program: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    foreign.drops()
    search = DiskSearch(lambda: [program], [], foreign.memory_files, foreign.disk)
    monkeypatch.setattr(foreign.disk, "longest_s", 0.0)
    search.search(well_known=False)
    assert _taken(search) == []
    assert foreign.drops() == {"library_searches_given_up": 1}
    assert "a search for libraries on disk was given up" in caplog.text
    monkeypatch.undo()
    search._programs.clear()
    search._executables.clear()
    search.search(well_known=False)
    assert _taken(search) == [tmp_path / "libcudart.so.12"]


def test_a_pipe_in_place_of_the_loader_s_cache_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc" / "ld.so.cache")
    assert library_copies_on_disk(root=tmp_path) == ()
