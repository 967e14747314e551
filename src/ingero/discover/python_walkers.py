"""Who reads the Python frames of a call: the kernel side as it returns, or the agent while its thread sleeps."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ingero.discover.interpreters import Interpreter, UnreadableInterpreter


class PyWalker(str, enum.Enum):
    """What was asked for. AUTO: the kernel's, else the agent's."""

    AUTO = "auto"
    EBPF = "ebpf"
    USERSPACE = "userspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker:
    """Who reads the frames of a recording, and why not the kernel side; "" if it does."""

    is_kernel: bool = True
    reason: str = ""

    def __str__(self) -> str:
        """Of what there will be lines."""
        if self.is_kernel:
            return "frames walked in the kernel"
        return f"frames read from outside, only of sleeping threads and of calls in flight for over 2 s ({self.reason})"


KERNEL_WALKER = Walker()
CHOSEN_USERSPACE = "--py-walker=userspace"


def python_text(interpreter: Interpreter | UnreadableInterpreter | None, walker: Walker) -> str:
    """What lines of Python there will be of a process, and who reads them."""
    if isinstance(interpreter, Interpreter):
        return f"{interpreter}, {walker}"
    return str(interpreter) if interpreter else "no Python"
