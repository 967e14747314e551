"""Selection of stacks: those of a time range, of one operation, through one line."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ingero.diagnose.findings import Diagnosis
from ingero.ops import Source
from ingero.store.call_stacks import CallStack, StackBook
from ingero.store.reader import Reader
from ingero.store.records import SampleTotals, Window
from ingero.store.user_sql.event_filter import op_pair
from ingero.store.waiters import PlacedTime, Waiter, Waiters

CALL_SOURCES = (Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH, Source.NCCL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """begin_ns, end_ns: unix ns, None: as far as there is. line: `PythonPlace.full`; "": any, as with op."""

    begin_ns: int | None = None
    end_ns: int | None = None
    op: str = ""
    line: str = ""

    def within(self, window: Window) -> Window:
        """The part of the window that is selected; empty if none is."""
        begin_ns = max(window.begin_ns, self.begin_ns or 0)
        end_ns = window.end_ns if self.end_ns is None else min(window.end_ns, self.end_ns)
        return Window(begin_ns=begin_ns, end_ns=max(begin_ns, end_ns))

    def of(self, since: str) -> TimeRange:
        """The selected time range within the last `since`."""
        return TimeRange(since=since, begin_ns=self.begin_ns, end_ns=self.end_ns)

    @property
    def op_pair(self) -> tuple[Source, int] | None:
        """(source, op) of the operation; None: any.

        Raises:
            UnknownOpError: there is no such operation.
        """
        return op_pair(self.op) if self.op else None

    def has(self, stack: CallStack | None) -> bool:
        """Whether the stack goes through the line."""
        return not self.line or (stack is not None and any(place.full == self.line for place in stack.python))

    def has_call(self, stack: CallStack | None, waiter: Waiter | None, book: StackBook) -> bool:
        """Whether calls with this stack go through the line, or the thread that waits for them does."""
        return self.has(stack) or (waiter is not None and self.has(book.of(waiter.stack_hash)))


ALL = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """The time that a question is about: of the last `since` ("": all) what lies from begin_ns on, before end_ns."""

    since: str = ""
    begin_ns: int | None = None
    end_ns: int | None = None

    def within(self, window: Window) -> Window:
        """The part of the window that is selected; empty if none is."""
        return Selection(begin_ns=self.begin_ns, end_ns=self.end_ns).within(window)

    def of(self, diagnosis: Diagnosis) -> Diagnosis:
        """The incidents that overlap it, from the whole diagnosis, so that numbers and baselines stay the same."""
        if self.begin_ns is None and self.end_ns is None:
            return diagnosis
        window = self.within(diagnosis.window)
        touching = tuple(
            incident
            for incident in diagnosis.incidents
            if not incident.start_ns
            or (incident.start_ns < window.end_ns and (incident.end_ns or window.end_ns) > window.begin_ns)
        )
        return replace(diagnosis, window=window, incidents=touching)


def placed_times(
    reader: Reader, window: Window, process: int, only: Selection, book: StackBook
) -> tuple[list[PlacedTime], str]:
    """The selected recorded calls of one process by operation and stack, highest total first.

    Also the reason why no waiting threads were searched for; "" if they were.
    """
    pair = only.op_pair
    times = reader.stack_times(window, process=process, sources=CALL_SOURCES if pair is None else pair[:1])
    mine = [stack_time for stack_time in times if pair is None or stack_time.op == pair[1]]
    placed, note = Waiters(reader, window, process=process).placed(mine, book)
    return [
        placed_time
        for placed_time in placed
        if only.has_call(book.of(placed_time.time.stack_hash), placed_time.waiter, book)
    ], note


def sample_times(reader: Reader, window: Window, process: int, only: Selection, book: StackBook) -> list[SampleTotals]:
    """The selected samples of one process outside calls by thread, state and stack; op says nothing about them."""
    samples = reader.samples(window, process=process) if reader.is_recorded("raw_stack_samples") else []
    book.read(sample.stack_hash for sample in samples)
    return [sample for sample in samples if only.has(book.of(sample.stack_hash))]
