"""Which processes have the code objects counted that they free, so that a walk need not read each one again.

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
from ingero.capture.processes.traced_processes import Target
from ingero.discover.freed_code import NoDestructorError
from ingero.discover.interpreters import Interpreter

log = logging.getLogger(__name__)

_BEFORE_S = 1.0  # a process that ends sooner is left alone
_LOOK_S = 1.0
_MOST_PER_S = 1000.0  # of freed code objects: two thousandths of a core, as a probe takes 2 us at most
_DETACHED_AT_ONCE = 16  # each only waits for the kernel


@dataclass(slots=True)
class _Watched:
    target: Target
    interpreter: Interpreter
    due: float  # time.monotonic() of what is to be done next
    link: Link | None = None
    count: int = 0  # when it was looked at last
    looked: float = 0.0


class FreedCode:
    """The probes of one recording; everything on one thread, but for detaching: that waits 20 to 50 ms.

    memory: who reads in processes.
    """

    def __init__(
        self, kernel: KernelSide, memory: MemoryReader | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._kernel, self._memory, self._now = kernel, memory or MemoryReader(), now
        self._watched: dict[int, _Watched] = {}  # by process number
        self._detaching = ThreadPoolExecutor(_DETACHED_AT_ONCE, "ingero-detach")

    def begin(self, target: Target, interpreter: Interpreter) -> None:
        """A process runs this interpreter from now on."""
        self.end(target.number)
        if self._kernel.freed_code and "interpreter.freed_code" not in interpreter.layout.offsets:
            self._watched[target.number] = _Watched(target, interpreter, self._now() + _BEFORE_S)

    def end(self, number: int) -> None:
        """A process has ended, or runs another program."""
        watched = self._watched.pop(number, None)
        if watched and watched.link:
            self._detaching.submit(watched.link.close)

    def settle(self) -> None:
        """Attaches what is due, and lets go who frees too many; to be called several times a second."""
        now = self._now()
        for number, watched in list(self._watched.items()):
            if now < watched.due:
                continue
            watched.due = now + _LOOK_S
            if not (self._attach(watched) if watched.link is None else self._is_worth_it(watched, now)):
                self.end(number)

    def close(self) -> None:
        """Detaches all, for good."""
        for number in list(self._watched):
            self.end(number)
        self._detaching.shutdown()

    def _attach(self, watched: _Watched) -> bool:
        target, probes = watched.target, self._kernel.freed_code
        image = self._kernel.image_at(target.slot, target.pid)  # before what follows is read of the process
        if probes is None or image is None:
            return False
        if not self._memory.may_probe():  # the file is mapped by whoever runs the same Python
            return True
        try:
            place = self._memory.destructor(target.pid, watched.interpreter)
            watched.link = probes.attach(target.pid, target.slot, image, place.path, place.offset)
        except (OSError, NoDestructorError, BpfError) as error:
            log.debug("freed code of %d is not counted: %s", target.pid, error)
            return False
        watched.count, watched.looked = probes.count(target.slot), self._now()
        log.debug("freed code of %d is counted", target.pid)
        return True

    def _is_worth_it(self, watched: _Watched, now: float) -> bool:
        assert self._kernel.freed_code
        count = self._kernel.freed_code.count(watched.target.slot)
        is_few = count - watched.count < _MOST_PER_S * (now - watched.looked)
        if not is_few:
            log.debug("too much freed code in %d to count", watched.target.pid)
        watched.count, watched.looked = count, now
        return is_few
