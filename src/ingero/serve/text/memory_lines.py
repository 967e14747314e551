"""The GPU memory that a process holds, by code line and call site."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingero.ops import MemoryKind
from ingero.store.call_stacks import CallStack, StackBook
from ingero.store.reader import Reader
from ingero.store.records import MemorySite, Window
from ingero.units import format_bytes, format_count

_TOP_PLACES = 5
_KIND_TEXTS = {
    MemoryKind.DEVICE: "device memory",
    MemoryKind.MANAGED: "managed memory",
    MemoryKind.PINNED: "pinned host memory",
    MemoryKind.MAPPED: "device memory created for mapping",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Memory held by the calls of one operation at one place. place: as shown."""

    name: str
    place: str
    end_bytes: int
    end_count: int
    growth_bytes: int
    failures: int
    failed_bytes: int


def held_memory(sites: Sequence[MemorySite], stacks: Mapping[int, CallStack]) -> list[HeldMemory]:
    """Memory by (call, line of the user's own code), most first.

    The calls of a site that have no record are at its line if all that have one are at the same.
    """
    groups: dict[tuple[str, str], list[MemorySite]] = defaultdict(list)
    for site, place in zip(sites, site_places(sites, stacks), strict=True):
        groups[site.name, place].append(site)
    return sorted((_held(*key, group) for key, group in groups.items()), key=lambda held: -held.end_bytes)


def site_places(sites: Sequence[MemorySite], stacks: Mapping[int, CallStack]) -> list[str]:
    """The place of each call site, as shown."""
    lines: dict[tuple[int, int, int], set[str]] = defaultdict(set)
    for site in sites:
        if stack := stacks.get(site.stack_hash):
            lines[site.source, site.op, site.caller].add(_line(stack))
    places = []
    for site in sites:
        stack, known = stacks.get(site.stack_hash), lines[site.source, site.op, site.caller]
        place = _line(stack) if stack else next(iter(known)) if len(known) == 1 else ""
        places.append(place or _caller(site))
    return places


def _held(name: str, place: str, sites: Sequence[MemorySite]) -> HeldMemory:
    return HeldMemory(
        name=name,
        place=place,
        end_bytes=sum(site.end_bytes for site in sites),
        end_count=sum(site.end_count for site in sites),
        growth_bytes=sum(site.growth_bytes for site in sites),
        failures=sum(site.failures for site in sites),
        failed_bytes=sum(site.failed_bytes for site in sites),
    )


def _line(stack: CallStack) -> str:
    if stack.own:
        return stack.own.short
    return stack.issuer.text if stack.issuer else ""


def _caller(site: MemorySite) -> str:
    if not site.library:
        return "an unknown caller"
    return f"{site.library}+{site.offset:#x}, calls without a stack"


def memory_lines(reader: Reader, window: Window, process: int, book: StackBook) -> Iterator[str]:
    """By kind of memory: in use at the end and at most, by place; then failed allocations and unknown memory."""
    if not reader.is_recorded("raw_allocations"):
        return
    levels = reader.memory_seconds(window, process=process)
    sites = reader.memory_sites(window, process=process)
    if not len(levels) and not sites:
        return
    book.read(site.stack_hash for site in sites)
    stacks = {site.stack_hash: stack for site in sites if (stack := book.of(site.stack_hash))}
    for kind, text in _KIND_TEXTS.items():
        mine = [site for site in sites if site.memory_kind == kind.name.lower()]
        yield from _kind(text, levels[levels["memory_kind"] == kind], held_memory(mine, stacks))
    yield from _failures(held_memory(sites, stacks))
    yield from _unknown(levels, sites)


def _kind(text: str, levels: npt.NDArray[np.void], held: Sequence[HeldMemory]) -> Iterator[str]:
    if not len(levels) or not levels["peak_bytes"].max():
        return
    live, peak = int(levels["live_bytes"][-1]), int(levels["peak_bytes"].max())
    shown = [one for one in held if one.end_bytes]
    by = ", by line or call site:" if shown else ""
    yield f"  {text}: {format_bytes(live)} in use at the end (peak {format_bytes(peak)}){by}"
    for one in shown[:_TOP_PLACES]:
        change = f", {_signed(one.growth_bytes)} in this window" if one.growth_bytes != one.end_bytes else ""
        held_text = f"{format_bytes(one.end_bytes):>10} in {format_count(one.end_count)}"
        yield f"    {held_text} by {one.name} at {one.place}{change}"
    rest = shown[_TOP_PLACES:]
    if rest:
        yield f"    {format_bytes(sum(one.end_bytes for one in rest)):>10} at {len(rest)} other places"


def _signed(count: int) -> str:
    return f"{'-' if count < 0 else '+'}{format_bytes(abs(count))}"


def _failures(held: Sequence[HeldMemory]) -> Iterator[str]:
    for one in sorted((one for one in held if one.failures), key=lambda one: -one.failures)[:_TOP_PLACES]:
        yield (
            f"  {format_count(one.failures)} times {one.name} failed at {one.place}: "
            f"{format_bytes(one.failed_bytes)} asked for in all"
        )


def _unknown(levels: npt.NDArray[np.void], sites: Sequence[MemorySite]) -> Iterator[str]:
    foreign = sum(site.foreign_frees for site in sites)
    if foreign:
        yield f"    {format_count(foreign)} frees were of memory that was allocated before tracing or unseen"
    unpaired = int(levels["unpaired"].max()) if len(levels) else 0
    if unpaired and not levels["peak_bytes"].max():
        yield "  GPU memory: not traced, allocations were not followed from their return to their free"
    elif unpaired:
        yield "    not exact: some allocations or frees were not followed (records dropped, or tracing reduced)"
