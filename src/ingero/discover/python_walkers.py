"""Which side reads the Python frames of a call: the kernel side at return, or the agent while the thread sleeps."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ingero.discover.interpreters import Interpreter, UnreadableInterpreter


class PyWalker(str, enum.Enum):
    """The requested walker. AUTO: the kernel side's, else the agent's."""

    AUTO = "auto"
    EBPF = "ebpf"
    USERSPACE = "userspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker:
    """The walker of a recording, and why it is not the kernel side; "" if it is."""

    is_kernel: bool = True
    reason: str = ""

    def __str__(self) -> str:
        """Which calls will have Python lines."""
        if self.is_kernel:
            return "frames walked in the kernel"
        return f"frames read from outside, only of sleeping threads and of calls in flight for over 2 s ({self.reason})"


KERNEL_WALKER = Walker()
CHOSEN_USERSPACE = "--py-walker=userspace"


def python_text(interpreter: Interpreter | UnreadableInterpreter | None, walker: Walker) -> str:
    """Which Python lines a process will have, and who reads them."""
    if isinstance(interpreter, Interpreter):
        return f"{interpreter}, {walker}"
    return str(interpreter) if interpreter else "no Python"
