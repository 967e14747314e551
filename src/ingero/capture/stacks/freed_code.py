"""Counts freed code objects per process, so that a stack walk need not read each code object again.

From 3.14 on an interpreter counts them itself. Of an older one a probe on their destructor does: in processes that are
there for a while, and free few. Who compiles all the time would pay for each, and gain nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ingero.attach.kernel_side import KernelSide
from ingero.attach.libbpf import BpfError, Link
from ingero.capture.foreign.memory_reader import MemoryReader
from ingero.capture.processes.traced_processes import TracedProcess
from ingero.discover.freed_code import NoDestructorError
from ingero.discover.interpreters import Interpreter

log = logging.getLogger(__name__)

_BEFORE_S = 1.0  # a process that ends sooner is left alone
_CHECK_PERIOD_S = 1.0
_MAX_PER_S = 1000.0  # of freed code objects: two thousandths of a core, as a probe takes 2 us at most
_DETACHED_AT_ONCE = 16  # each only waits for the kernel


@dataclass(slots=True)
class _WatchedProcess:
    traced_process: TracedProcess
    interpreter: Interpreter
    due: float  # time.monotonic() of what is to be done next
    link: Link | None = None
    count: int = 0  # at the last check
    looked: float = 0.0


class FreedCode:
    """The freed-code probes of one recording; all on one thread, except detaching, which takes 20 to 50 ms.

    memory: who reads in processes.
    """

    def __init__(
        self, kernel: KernelSide, memory: MemoryReader | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._kernel, self._memory, self._now = kernel, memory or MemoryReader(), now
        self._watched: dict[int, _WatchedProcess] = {}  # by process number
        self._detaching = ThreadPoolExecutor(_DETACHED_AT_ONCE, "ingero-detach")

    def begin(self, traced_process: TracedProcess, interpreter: Interpreter) -> None:
        """Notes that a process runs this interpreter from now on."""
        self.end(traced_process.number)
        if self._kernel.freed_code and "interpreter.freed_code" not in interpreter.layout.offsets:
            self._watched[traced_process.number] = _WatchedProcess(traced_process, interpreter, self._now() + _BEFORE_S)

    def end(self, number: int) -> None:
        """Ends counting: the process has ended, or runs another program."""
        watched = self._watched.pop(number, None)
        if watched and watched.link:
            self._detaching.submit(watched.link.close)

    def settle(self) -> None:
        """Attaches due probes, and detaches from processes that free too many; call it several times a second."""
        now = self._now()
        for number, watched in list(self._watched.items()):
            if now < watched.due:
                continue
            watched.due = now + _CHECK_PERIOD_S
            if not (self._attach(watched) if watched.link is None else self._is_worth_it(watched, now)):
                self.end(number)

    def close(self) -> None:
        """Detaches all probes for good."""
        for number in list(self._watched):
            self.end(number)
        self._detaching.shutdown()

    def _attach(self, watched: _WatchedProcess) -> bool:
        traced_process, probes = watched.traced_process, self._kernel.freed_code
        image = self._kernel.image_at(
            traced_process.slot, traced_process.pid
        )  # before what follows is read of the process
        if probes is None or image is None:
            return False
        if not self._memory.may_probe():  # all processes with the same Python map the file
            return True
        try:
            place = self._memory.destructor(traced_process.pid, watched.interpreter)
            watched.link = probes.attach(traced_process.pid, traced_process.slot, image, place.path, place.offset)
        except (OSError, NoDestructorError, BpfError) as error:
            log.debug("freed code of %d is not counted: %s", traced_process.pid, error)
            return False
        watched.count, watched.looked = probes.count(traced_process.slot), self._now()
        log.debug("freed code of %d is counted", traced_process.pid)
        return True

    def _is_worth_it(self, watched: _WatchedProcess, now: float) -> bool:
        assert self._kernel.freed_code
        count = self._kernel.freed_code.count(watched.traced_process.slot)
        is_few = count - watched.count < _MAX_PER_S * (now - watched.looked)
        if not is_few:
            log.debug("too much freed code in %d to count", watched.traced_process.pid)
        watched.count, watched.looked = count, now
        return is_few
