"""Where the probes of one library file go: one site per traced call and exported variant of its name."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingero.discover.elf import ElfFile
from ingero.discover.instructions import FirstInstruction, probe_offset
from ingero.discover.library_files import LibraryFile
from ingero.discover.symbol_table import function_offsets
from ingero.ops import COMMUNICATOR_CALLS, KERNEL_NAME_CALLS, OPS, Op


class Origin(enum.Enum):
    """How the address of a site was learned."""

    EXPORTED = "exported symbol"
    ENTRY_POINT = "cuGetProcAddress"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A probe site.

    symbol: the variant of the call that is reached here; it decides the cookie.
    file_offset: bytes into the file, of the instruction that gets the probe.
    instruction: what stands there; a single-stepped one makes each hit many times slower.
    """

    op: Op
    symbol: str
    file_offset: int
    instruction: FirstInstruction
    origin: Origin = Origin.EXPORTED

    @property
    def cookie(self) -> int:
        """The attach cookie for the BPF programs."""
        return self.op.cookie(self.symbol)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingSite:
    """A traced call without a site in this file, and why, in plain words."""

    op: Op
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSite:
    """A symbol that shares its code with a site: its calls are recorded under the site's symbol."""

    op: Op
    symbol: str
    site: Site


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReport:
    """All traced calls of the file's library: probed, sharing a probe, or missing with a reason."""

    file: LibraryFile
    sites: tuple[Site, ...]
    shared: tuple[SharedSite, ...]
    missing: tuple[MissingSite, ...]

    @property
    def single_stepped(self) -> tuple[Site, ...]:
        """The sites where each hit costs a single-step trap."""
        return tuple(site for site in self.sites if site.instruction.is_single_stepped)


def probe_sites(file: LibraryFile, descriptor: int | None = None) -> SiteReport:
    """Finds the sites of every row of `ops.OPS` that belongs to the file's library.

    All variants that are exported at different addresses get a site (a program linked long ago calls `cuMemAlloc`, a
    new one `cuMemAlloc_v2`); a row is missing only if none of its symbols is exported.
    descriptor: of the file, where it is open already.

    Raises:
        OSError: the file is gone or may not be read.
        UnreadableElfError: it is damaged.
    """
    rows = [op for op in OPS if op.library is file.library]
    with ElfFile(file.path, descriptor) as elf:
        offsets = function_offsets(elf, [symbol for op in rows for symbol in op.symbols])
        named = ((op, symbol, offset) for op in rows for symbol in op.symbols for offset in offsets.get(symbol, ()))
        sites, shared = assign(elf, named, Origin.EXPORTED)
    return SiteReport(file=file, sites=sites, shared=shared, missing=tuple(_missing(rows, (*sites, *shared))))


def communicator_sites(file: LibraryFile, descriptor: int | None = None) -> dict[int, int]:
    """Sites of NCCL calls on communicators: file offset -> cookie of `bpf/nccl.bpf.c`; one per address.

    Raises:
        OSError: the file is gone or may not be read.
        UnreadableElfError: it is damaged.
    """
    return _naming_sites(file, COMMUNICATOR_CALLS, descriptor)


def kernel_name_sites(file: LibraryFile, descriptor: int | None = None) -> dict[int, int]:
    """Sites of CUDA calls that name kernels: file offset -> cookie of `bpf/kernel_names.bpf.c`.

    Raises:
        OSError: the file is gone or may not be read.
        UnreadableElfError: it is damaged.
    """
    return _naming_sites(file, KERNEL_NAME_CALLS, descriptor)


def _naming_sites(file: LibraryFile, calls: Mapping[str, int], descriptor: int | None) -> dict[int, int]:
    """File offset -> role and place in `calls`; one per address."""
    sites: dict[int, int] = {}
    with ElfFile(file.path, descriptor) as elf:
        found = function_offsets(elf, calls)
        for index, (name, role) in enumerate(calls.items()):
            for offset in found.get(name, ()):
                point = probe_offset(elf.read_at(offset), elf.machine)
                sites.setdefault(offset + point.skip_bytes, role | index << 8)
    return sites


def assign(
    elf: ElfFile, named: Iterable[tuple[Op, str, int]], origin: Origin, taken: Sequence[Site] = ()
) -> tuple[tuple[Site, ...], tuple[SharedSite, ...]]:
    """Turns (op, symbol, file offset of the function) into sites, one per address.

    taken: sites that exist already; the same address again is not a new site.
    """
    by_offset = {site.file_offset: site for site in taken}
    sites: list[Site] = []
    shared: list[SharedSite] = []
    for op, symbol, offset in named:
        point = probe_offset(elf.read_at(offset), elf.machine)
        place = offset + point.skip_bytes
        if place in by_offset:
            shared.append(SharedSite(op=op, symbol=symbol, site=by_offset[place]))
            continue
        by_offset[place] = Site(op=op, symbol=symbol, file_offset=place, instruction=point.instruction, origin=origin)
        sites.append(by_offset[place])
    return tuple(sites), tuple(shared)


def _missing(rows: Sequence[Op], found: Sequence[Site | SharedSite]) -> Iterator[MissingSite]:
    seen = {one.op.id for one in found}
    for op in rows:
        if op.id not in seen:
            names = " or ".join(op.symbols[:3]) + (" or another variant" if len(op.symbols) > 3 else "")
            yield MissingSite(op=op, reason=f"the file does not export {names}")
