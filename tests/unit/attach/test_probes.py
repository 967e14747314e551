"""The order in which probes are removed, and that many copies of a library take no longer than one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ingero.attach.groups import group_of_cookie
from ingero.attach.libbpf import Link
from ingero.attach.probes import CallProbes, CallSite, ProbeMode, _GroupLinks, _kept_open
from ingero.ops import OPS, Library


def _place(library: Library, path: str, link: Link) -> _GroupLinks:
    cookie = next(op.id for op in OPS if op.library is library)
    site = CallSite(path=path, offset=0, cookie=cookie)
    return _GroupLinks(path=path, group=group_of_cookie(cookie), sites=[site], links={"call_session": [link]})


def test_a_file_that_is_kept_open_is_not_asked_of_its_file_system_again(tmp_path: Path) -> None:
    """Another pipe end would wait for somebody to open the other one."""
    os.mkfifo(tmp_path / "pipe")
    first = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    again = _kept_open(f"/proc/self/fd/{first}")
    assert os.path.sameopenfile(first, again)
    os.close(first)
    os.close(again)


def test_all_copies_of_a_library_are_detached_at_once_and_the_driver_first() -> None:
    probes = CallProbes(None, ProbeMode.SESSION)  # type: ignore[arg-type]  # nothing is attached with it
    all_wait = threading.Barrier(20)  # as for the kernel; one after the other would wait here for ever
    closed: list[Library] = []

    def closing(library: Library) -> Link:
        return Link(lambda: (all_wait.wait(60), closed.append(library), None)[-1])

    for number in range(20):  # a runtime, then its driver, as they are found
        for library in (Library.CUDART, Library.CUDA):
            probes._files.append(_place(library, f"/{number}/{library.value}", closing(library)))
    probes.close()
    assert closed == 20 * [Library.CUDA] + 20 * [Library.CUDART]
