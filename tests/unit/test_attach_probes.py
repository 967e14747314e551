"""The order in which probes are removed, and that many copies of a library take no longer than one."""

from __future__ import annotations

import threading

from ingero.attach.groups import group_of_cookie
from ingero.attach.libbpf import Link
from ingero.attach.probes import CallProbes, CallSite, ProbeMode, _GroupLinks
from ingero.ops import OPS, Library


def _place(library: Library, path: str, link: Link) -> _GroupLinks:
    cookie = next(op.id for op in OPS if op.library is library)
    site = CallSite(path=path, offset=0, cookie=cookie)
    return _GroupLinks(path=path, group=group_of_cookie(cookie), sites=[site], links={"call_session": [link]})


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
