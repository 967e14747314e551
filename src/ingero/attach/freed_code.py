"""Counts the code objects that a process frees, in map `freed_codes`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np

from ingero.attach.libbpf import AttachType, BpfObject, Link, Map
from ingero.attach.objects import object_path
from ingero.decode.btf import Btf
from ingero.discover.kernel import read_kernel

_PROGRAM = "code_freed"


class FreedCodeProbes:
    """The counting program, loaded; one link per process. Close the links before this.

    shared: the maps of the scheduler programs.

    Raises:
        BpfError: the kernel refuses it.
    """

    def __init__(self, shared: Mapping[str, Map], layouts: Btf) -> None:
        # before 6.10 such a link for one process saw the calls of its first thread only; sessions came with 6.13
        self._is_multi = "uprobe_session" in read_kernel().features
        types = {_PROGRAM: AttachType.UPROBE_MULTI} if self._is_multi else {}
        self._loaded = BpfObject(object_path("freed_code"), shared=shared, uprobe_types=types)
        counts = shared["freed_codes"]
        self._counts = np.frombuffer(counts.memory(), layouts.dtype("freed_code"), counts.max_entries)

    def attach(self, pid: int, slot: int, image: int, path: str, offset: int) -> Link:
        """Counts calls of the function at an offset of a file in one process, until the link is closed.

        image: of the program that the process runs, as image_of() in bpf/maps.h has it.

        Raises:
            BpfError: the kernel refuses.
        """
        self._counts["image"][slot] = 0
        self._counts["count"][slot] += 1  # what was known of this slot's code objects holds no more
        program = self._loaded.program(_PROGRAM)
        with ExitStack() as links:
            if self._is_multi:
                link = program.attach_uprobes(path, [(offset, slot)], AttachType.UPROBE_MULTI, pid=pid)
            else:
                link = program.attach_uprobe(path, offset, slot, pid=pid)
            links.callback(link.close)
            self._counts["image"][slot] = image
            links.callback(self._end, slot, image)
            return Link(links.pop_all().close)

    def count(self, slot: int) -> int:
        """The number of code objects freed so far."""
        return int(self._counts["count"][slot])

    def close(self) -> None:
        """Unloads the program."""
        self._loaded.close()

    def _end(self, slot: int, image: int) -> None:
        if self._counts["image"][slot] == image:  # else the slot is another program's by now
            self._counts["image"][slot] = 0
