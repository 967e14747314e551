"""discover.libraries on real processes: every copy found once, wherever it lies."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ingero.discover.libraries import LibraryCopy, LibraryScanner, Reach
from ingero.discover.sites import probe_sites

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mount namespaces, chroot and map_files"),
]

# Maps each file named on a line of its input, as the dynamic loader would, and says so. Static, to run in any root.
MAPPER = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void)
{
    char line[4096];
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        int fd = open(line, O_RDONLY);
        void *at = fd < 0 ? MAP_FAILED : mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
        close(fd);
        puts(at == MAP_FAILED ? "failed" : "mapped");
        fflush(stdout);
    }
    return 0;
}
"""


class MappingProcess:
    """A process that maps what it is told."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def maps(self, path: Path | str) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "mapped\n"

    @property
    def pid(self) -> int:
        """Of the mapper itself; `unshare` and `chroot` become it by execve."""
        return self._process.pid

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def mapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mapper")
    (folder / "mapper.c").write_text(MAPPER)
    subprocess.run(["gcc", "-O1", "-static", "-o", folder / "mapper", folder / "mapper.c"], check=True)
    return folder / "mapper"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    (folder / "a.c").write_text("int cudaMalloc(int a) { return a; }\n")
    path = folder / "libcudart.so.12"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, folder / "a.c"], check=True)
    return path


@pytest.fixture
def library(built: Path, tmp_path: Path) -> Path:
    """A copy of its own for each test, so that no other test's process is found."""
    return Path(shutil.copy(built, tmp_path / built.name))


@contextlib.contextmanager
def mapping_process(command: Sequence[str | Path]) -> Iterator[MappingProcess]:
    process = MappingProcess(command)
    try:
        yield process
    finally:
        process.end()


def copies_of(scanner: LibraryScanner, *pids: int) -> list[LibraryCopy]:
    """The copies that any of these processes maps."""
    return [copy for copy in scanner.scan().copies if set(copy.pids) & set(pids)]


def only_copy(scanner: LibraryScanner, *pids: int) -> LibraryCopy:
    (copy,) = copies_of(scanner, *pids)
    return copy


def is_readable(copy: LibraryCopy) -> bool:
    return [site.symbol for site in probe_sites(copy.file).sites] == ["cudaMalloc"]


def test_a_mapped_library_is_found_with_its_process(mapper: Path, library: Path) -> None:
    with mapping_process([mapper]) as process:
        process.maps(library)
        copy = only_copy(LibraryScanner(), process.pid)
        assert (copy.file.path, copy.reach, copy.pids) == (library, Reach.PLAIN, (process.pid,))
        assert is_readable(copy)


def test_a_library_loaded_late_is_found_in_the_next_scan(mapper: Path, library: Path) -> None:
    scanner = LibraryScanner()
    with mapping_process([mapper]) as process:
        assert copies_of(scanner, process.pid) == []
        process.maps(library)
        assert only_copy(scanner, process.pid).mapped_path == str(library)


def test_a_copy_stays_known_after_its_last_process(mapper: Path, library: Path) -> None:
    scanner = LibraryScanner()
    with mapping_process([mapper]) as process:
        process.maps(library)
        number = only_copy(scanner, process.pid).number
    after = next(copy for copy in scanner.scan().copies if copy.number == number)
    assert after.pids == ()
    with mapping_process([mapper]) as again:
        again.maps(library)
        assert only_copy(scanner, again.pid).number == number


def test_a_forgotten_copy_is_new_when_it_comes_back(mapper: Path, library: Path) -> None:
    scanner = LibraryScanner()
    with mapping_process([mapper]) as process:
        process.maps(library)
        number = only_copy(scanner, process.pid).number
    scanner.forget(number)
    assert number not in {copy.number for copy in scanner.scan().copies}
    with mapping_process([mapper]) as again:
        again.maps(library)
        assert only_copy(scanner, again.pid).number != number


def test_links_to_one_file_are_one_copy(mapper: Path, library: Path) -> None:
    hard, soft = library.with_name("libcudart.so.12.1"), library.with_name("libcudart.so")
    hard.hardlink_to(library)
    soft.symlink_to(library)
    with mapping_process([mapper]) as one, mapping_process([mapper]) as two, mapping_process([mapper]) as three:
        for process, path in ((one, library), (two, hard), (three, soft)):
            process.maps(path)
        pids = (one.pid, two.pid, three.pid)
        assert only_copy(LibraryScanner(), *pids).pids == tuple(sorted(pids))


def test_an_equal_file_elsewhere_is_a_copy_of_its_own(mapper: Path, library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my env"
    folder.mkdir()
    other = Path(shutil.copy(library, folder / library.name))
    with mapping_process([mapper]) as process:
        process.maps(library)
        process.maps(other)
        found = copies_of(LibraryScanner(), process.pid)
        assert {copy.file.path for copy in found} == {library, other}
        assert len({copy.file.build for copy in found}) == 1


def test_a_deleted_file_is_reached_through_map_files(mapper: Path, library: Path) -> None:
    with mapping_process([mapper]) as process:
        process.maps(library)
        library.unlink()
        copy = only_copy(LibraryScanner(), process.pid)
        assert (copy.reach, copy.mapped_path) == (Reach.MAP_FILES, str(library))
        assert is_readable(copy)


def test_a_file_deleted_after_it_was_seen_is_no_new_copy(mapper: Path, library: Path) -> None:
    scanner = LibraryScanner()
    with mapping_process([mapper]) as process, mapping_process([mapper]) as late:
        process.maps(library)
        number = only_copy(scanner, process.pid).number
        late.maps(library)
        library.unlink()
        assert only_copy(scanner, late.pid).number == number


def test_a_replaced_file_and_its_successor_are_two_copies(mapper: Path, library: Path) -> None:
    with mapping_process([mapper]) as old, mapping_process([mapper]) as new:
        old.maps(library)
        successor = Path(shutil.copy(library, library.with_name("new")))
        successor.replace(library)
        new.maps(library)
        found = {copy.pids: copy.reach for copy in copies_of(LibraryScanner(), old.pid, new.pid)}
        assert found == {(old.pid,): Reach.MAP_FILES, (new.pid,): Reach.PLAIN}


def test_a_file_that_is_called_deleted_is_found(mapper: Path, library: Path) -> None:
    odd = library.rename(library.with_name("libcudart.so.12 (deleted)"))
    with mapping_process([mapper]) as process:
        process.maps(odd)
        copy = only_copy(LibraryScanner(), process.pid)
        assert (copy.file.path, copy.reach) == (odd, Reach.PLAIN)


def test_a_process_in_a_chroot_is_reached_through_its_root(mapper: Path, library: Path, tmp_path: Path) -> None:
    jail = tmp_path / "jail"
    (jail / "lib").mkdir(parents=True)
    shutil.copy(mapper, jail / "mapper")
    inside = Path(shutil.copy(library, jail / "lib" / library.name))
    with mapping_process(["chroot", jail, "/mapper"]) as process:
        process.maps("/lib/libcudart.so.12")
        copy = only_copy(LibraryScanner(), process.pid)
        assert copy.reach in (Reach.PLAIN, Reach.PROCESS_ROOT)
        assert copy.file.path.samefile(inside)
        assert is_readable(copy)


def in_mount_namespace(script: str, mapper: Path) -> list[str | Path]:
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f"{script}\nexec {mapper}"]


def test_the_same_path_in_another_mount_namespace_is_another_file(mapper: Path, library: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    visible = Path(shutil.copy(library, place / library.name))
    script = f"mount -t tmpfs none {place}\ncp {library} {visible}"
    with mapping_process([mapper]) as outside, mapping_process(in_mount_namespace(script, mapper)) as inside:
        outside.maps(visible)
        inside.maps(visible)
        found = {copy.pids: copy for copy in copies_of(LibraryScanner(), outside.pid, inside.pid)}
        assert found[(outside.pid,)].reach is Reach.PLAIN
        hidden = found[(inside.pid,)]
        assert hidden.reach is Reach.PROCESS_ROOT
        assert hidden.file.path == Path(f"/proc/{inside.pid}/root{visible}")
        assert is_readable(hidden)


def test_a_bind_mount_of_the_same_file_is_no_other_copy(mapper: Path, library: Path, tmp_path: Path) -> None:
    place = tmp_path / "libcudart.so.13"
    place.touch()
    script = f"mount --bind {library} {place}"
    with mapping_process([mapper]) as outside, mapping_process(in_mount_namespace(script, mapper)) as inside:
        outside.maps(library)
        inside.maps(place)
        pids = (outside.pid, inside.pid)
        assert only_copy(LibraryScanner(), *pids).pids == tuple(sorted(pids))


def overlay_script(lower: Path, merged: Path) -> str:
    """Mounts an overlay whose upper layer is a fresh tmpfs, as a container runtime does."""
    return (
        f"mount -t tmpfs none {merged}\nmkdir {merged}/u {merged}/w {merged}/m\n"
        f"mount -t overlay overlay -o lowerdir={lower},upperdir={merged}/u,workdir={merged}/w {merged}/m"
    )


def test_one_file_below_two_overlays_is_one_copy(mapper: Path, library: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    merged.mkdir()
    command = in_mount_namespace(overlay_script(library.parent, merged), mapper)
    with mapping_process(command) as one, mapping_process(command) as two:
        one.maps(merged / "m" / library.name)
        two.maps(merged / "m" / library.name)
        copy = only_copy(LibraryScanner(), one.pid, two.pid)
        assert copy.pids == tuple(sorted((one.pid, two.pid)))
        assert copy.file.device is None
        assert is_readable(copy)


def test_a_file_and_an_overlay_above_it_are_one_copy(mapper: Path, library: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    merged.mkdir()
    command = in_mount_namespace(overlay_script(library.parent, merged), mapper)
    with mapping_process([mapper]) as plain, mapping_process(command) as above:
        plain.maps(library)
        above.maps(merged / "m" / library.name)
        copy = only_copy(LibraryScanner(), plain.pid, above.pid)
        assert copy.pids == tuple(sorted((plain.pid, above.pid)))
        assert copy.reach is Reach.PLAIN


def test_a_file_written_inside_an_overlay_is_another_copy(mapper: Path, library: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    merged.mkdir()
    inside = merged / "m" / "libcudart.so.13"
    script = f"{overlay_script(library.parent, merged)}\ncp {library} {inside}"
    with mapping_process([mapper]) as plain, mapping_process(in_mount_namespace(script, mapper)) as above:
        plain.maps(library)
        above.maps(inside)
        assert len(copies_of(LibraryScanner(), plain.pid, above.pid)) == 2


def test_the_path_survives_the_process_it_led_through(mapper: Path, library: Path, tmp_path: Path) -> None:
    jail = tmp_path / "jail"
    (jail / "lib").mkdir(parents=True)
    shutil.copy(mapper, jail / "mapper")
    shutil.copy(library, jail / "lib" / library.name)
    script = f"mount -t tmpfs none {jail}/lib\ncp {library} {jail}/lib/"
    nested = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f"{script}\nexec chroot {jail} /mapper"]
    scanner = LibraryScanner()
    with mapping_process(nested) as first:
        first.maps("/lib/libcudart.so.12")
        with mapping_process(["nsenter", f"--mount=/proc/{first.pid}/ns/mnt", "chroot", jail, "/mapper"]) as second:
            second.maps("/lib/libcudart.so.12")
            number = only_copy(scanner, first.pid, second.pid).number
            first.end()
            copy = only_copy(scanner, second.pid)
            assert copy.number == number
            assert is_readable(copy)


def test_a_damaged_library_is_reported_and_does_not_stop_the_scan(mapper: Path, library: Path, tmp_path: Path) -> None:
    broken = tmp_path / "libcuda.so.1"
    broken.write_bytes(b"\x7fELF" + b"\0" * 5000)
    with mapping_process([mapper]) as process:
        process.maps(broken)
        process.maps(library)
        scan = LibraryScanner().scan()
        assert [one.mapped_path for one in scan.unreadable if one.pid == process.pid] == [str(broken)]
        assert [copy.file.path for copy in scan.copies if process.pid in copy.pids] == [library]


def test_a_copy_on_disk_is_the_copy_that_is_mapped_later(mapper: Path, library: Path) -> None:
    scanner = LibraryScanner()
    assert scanner.add_on_disk([library]) == ()
    (number,) = [copy.number for copy in scanner.scan().copies if copy.file.path == library]
    with mapping_process([mapper]) as process:
        process.maps(library)
        assert only_copy(scanner, process.pid).number == number


def test_a_missing_file_on_disk_is_answered_with_its_reason(tmp_path: Path) -> None:
    (problem,) = LibraryScanner().add_on_disk([tmp_path / "libcuda.so.1"])
    assert problem.reason == "it has gone"


def test_a_process_that_does_not_change_is_not_read_again(mapper: Path, library: Path) -> None:
    scanner = LibraryScanner()
    with mapping_process([mapper]) as process:
        process.maps(library)
        first = scanner.scan()
        second = scanner.scan()
        assert second.read_again < first.read_again
        assert process.pid in second.pids


def test_processes_that_come_and_go_during_scans_are_no_error() -> None:
    scanner = LibraryScanner()
    churn = subprocess.Popen(["sh", "-c", "i=0; while [ $i -lt 300 ]; do true | true; i=$((i+1)); done"])
    while churn.poll() is None:
        assert scanner.scan().processes > 0
