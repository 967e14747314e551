"""Writes GPU memory for a script: allocations, frees, and the memory in use."""

from __future__ import annotations

from functools import cached_property

from ingero.demo.scripted_calls import BY_NAME
from ingero.demo.scripted_recording import ScriptedRecording
from ingero.demo.scripted_steps import Actor
from ingero.store.writing import tables


class ScriptedMemory(ScriptedRecording):
    """The part of a scripted run that writes allocations and the memory in use after them."""

    @cached_property
    def _live(self) -> dict[tuple[int, int], dict[tuple[int, int], int]]:
        """The number of blocks in use by (op, stack), for each (process, memory kind)."""
        return {}

    def memory(
        self,
        actor: Actor,
        name: str,
        at_s: float,
        count: int,
        size_bytes: int,
        *,
        freed: int = 0,
        stack: int = 0,
        failures: int = 0,
        unpaired: int = 0,
    ) -> None:
        """Writes the allocations of a line in the second at_s: `count` of size_bytes each, of which `freed` were freed.

        failures: further allocations that failed.
        """
        op = BY_NAME[name]
        assert op.memory is not None, f"{name} allocates nothing"
        live = self._live.setdefault((actor.number, int(op.memory)), {})
        live[op.code, stack] = live.get((op.code, stack), 0) + count - freed
        place = {"start_ns": self.at(at_s), "process": actor.number, "memory_kind": int(op.memory)}
        self.append(
            tables.ALLOCATIONS,
            **place,
            source=int(op.source),
            op=op.code,
            stack_hash=stack,
            live_bytes=live[op.code, stack] * size_bytes,
            live_count=live[op.code, stack],
            peak_bytes=live[op.code, stack] * size_bytes,
            allocated_bytes=count * size_bytes,
            freed_bytes=freed * size_bytes,
            allocations=count,
            frees=freed,
            failures=failures,
            failed_bytes=failures * size_bytes,
        )
        total = sum(live.values())
        levels = {"live_bytes": total * size_bytes, "live_count": total, "peak_bytes": total * size_bytes}
        self.append(tables.MEMORY_SECONDS, **place, **levels, unpaired=unpaired)
