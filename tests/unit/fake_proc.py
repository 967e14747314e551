"""A /proc of a test's own: processes that sleep in system calls, with their files, locks and connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

RUNS = "running"
FUTEX_WAIT, FUTEX_PRIVATE = 0, 128
FIRST_PID = 5_000_000  # beyond any that the kernel gives: nothing of a real process is read


def call(number: int, *arguments: int) -> str:
    """A line of /proc/PID/task/TID/syscall."""
    words = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    return f"{number} {' '.join(hex(word) for word in words)} 0x7ffd0000 0x7f0000001000"


class FakeProc:
    """The folder; every method may be called again to change what it wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.locks("")

    def process(
        self,
        pid: int,
        syscall: str = RUNS,
        *,
        state: str = "S",
        parent: int = 0,
        switches: int = 7,
        files: Mapping[int, tuple[str, str]] | None = None,
        children: Sequence[int] = (),
        tracer: int = 0,
    ) -> None:
        """files: (what the link says, fdinfo's lines) by descriptor."""
        self.thread(pid, pid, syscall, state=state, switches=switches, tracer=tracer, parent=parent)
        folder = self.folder / str(pid)
        (folder / "status").write_text(f"PPid:\t{parent}\n")
        (folder / "task" / str(pid) / "children").write_text(" ".join(map(str, children)))
        (folder / "mountinfo").write_text(
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:50 / /data rw - nfs4 store:/x rw\n"
        )
        for number, (target, info) in (files or {}).items():
            for name in ("fd", "fdinfo"):
                (folder / name).mkdir(exist_ok=True)
            link = folder / "fd" / str(number)
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            (folder / "fdinfo" / str(number)).write_text(info)

    def thread(
        self,
        pid: int,
        tid: int,
        syscall: str = RUNS,
        *,
        state: str = "S",
        switches: int = 7,
        tracer: int = 0,
        parent: int = 0,
        ran_ns: int = 0,
    ) -> None:
        """Adds a thread to a process, or changes the state of one."""
        task = self.folder / str(pid) / "task" / str(tid)
        task.mkdir(parents=True, exist_ok=True)
        (task / "status").write_text(
            f"Name:\tx\nState:\t{state} (what)\nPPid:\t{parent}\nTracerPid:\t{tracer}\n"
            f"voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t0\n"
        )
        (task / "stat").write_text(f"{tid} (a b) c) {state} {parent} 0")
        (task / "syscall").write_text(syscall)
        (task / "wchan").write_text("some_place")
        (task / "schedstat").write_text(f"{ran_ns} 0 1")

    def locks(self, text: str) -> None:
        """The file of all locks."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "locks").write_text(text)
