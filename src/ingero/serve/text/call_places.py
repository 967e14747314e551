"""The place of a call: its own stack or, if its thread has no Python frames, the line that waited for it."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.serve.text.stack_lines import stack_lines, waiting_lines, waiting_text, where_text
from ingero.store.call_stacks import CallStack, StackBook
from ingero.store.records import Call
from ingero.store.waiters import Waiter, Waiters


class CallPlaces:
    """The places of single calls as text. is_whole: with all frames."""

    def __init__(self, book: StackBook, waiters: Waiters, *, is_whole: bool) -> None:
        self._book, self._waiters, self._is_whole = book, waiters, is_whole

    def lines(self, call: Call) -> Iterator[str]:
        """The lines of text for the place of one call."""
        stack = self._book.of(call.stack_hash)
        if stack is None:
            reason = "its stack was dropped" if call.stack_hash else "no stack was taken"
            yield f"line not known: {reason}"
            return
        waiter, waiting = self._waiter(call, stack)
        if self._is_whole:
            yield from stack_lines(stack)
            yield from waiting_lines(waiter, waiting) if waiter else ()
            return
        text = waiting_text(waiter, waiting) if waiter else ""
        yield f"at {where_text(stack)}" + (f"  {text}" if text else "")

    def _waiter(self, call: Call, stack: CallStack) -> tuple[Waiter | None, CallStack | None]:
        if not stack.is_a_librarys:
            return None, None
        waiter = self._waiters.of(call.tid, call.start_ns, call.start_ns + call.duration_ns)
        return waiter, self._book.of(waiter.stack_hash) if waiter else None
