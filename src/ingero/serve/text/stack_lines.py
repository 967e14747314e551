"""Stored stacks as text: the line that made a call, and the whole stack."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.identity import waiting_mark
from ingero.store.call_stacks import CallStack
from ingero.store.waiters import Waiter


def where_text(stack: CallStack) -> str:
    """One line: the Python frame that made the call and the user's own, the native function, what is missing."""
    parts = [_python_text(stack) or "no Python frame"]
    if stack.issuer:
        parts.append(f"issued by {stack.issuer.text}")
    if stack.note:
        parts.append(f"({stack.note})")
    return "  ".join(parts)


def _python_text(stack: CallStack) -> str:
    own = stack.own
    if own is None:
        return ""
    inner = stack.python[0]
    if own == inner:
        return inner.short
    return f"{inner.short} {'< ' if own == stack.python[1] else '< ... < '}{own.short}"


def waiting_text(waiter: Waiter, stack: CallStack | None) -> str:
    """The line of the thread that waited for a call; "" where it has none."""
    return f"{_python_text(stack)} {waiting_mark(waiter.thread)}" if stack and stack.python else ""


def waiting_lines(waiter: Waiter, stack: CallStack | None) -> Iterator[str]:
    """The Python frames of the thread that waited for a call, innermost first."""
    if stack:
        mark = waiting_mark(waiter.thread)
        yield from (f"{mark} {place.full}()" for place in stack.python)


def stack_lines(stack: CallStack) -> Iterator[str]:
    """The whole stack, innermost first."""
    yield from (f"[Native] {place.text}" for place in stack.native)
    for place in stack.python:
        yield f"[Python] {place.full}()"
    if stack.note:
        yield f"({stack.note})"
