"""What a reader of the sandbox says of open library files, and how the agent takes it: nothing in it is trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ingero.discover.driver_offsets import DriverOffsets, read_answer
from ingero.discover.elf import ElfFile
from ingero.discover.instructions import FirstInstruction
from ingero.discover.library_files import LibraryFile, identify_all
from ingero.discover.library_reader import telling_sites
from ingero.discover.linked_libraries import Linked, identify_linked
from ingero.discover.sites import MissingSite, Origin, SharedSite, Site, SiteReport, probe_sites
from ingero.ops import BY_ID, Library
from ingero.sandbox.messages import Message
from ingero.sandbox.nursery import Task
from ingero.sandbox.process import RefusedAnswerError

_MOST_SITES = 4096  # there are 200 traced calls, with five names each
_MOST_TEXT = 4096


def tasks() -> Mapping[str, Task]:
    """By the names that they are asked for by; each question has one file."""
    return {
        "identify": _identify,
        "linked": _linked,
        "sites": _sites,
        "needed": _needed,
        "entry_points": _entry_points,
    }


def told_of_file(file: LibraryFile) -> dict[str, Any]:
    """A library file as a question or an answer has it."""
    return {
        "library": file.library.value,
        "path": str(file.path),
        "device": file.device,
        "inode": file.inode,
        "size_bytes": file.size_bytes,
        "build": file.build,
        "soname": file.soname,
        "machine": file.machine,
    }


def taken_file(told: Any, path: Path) -> LibraryFile:
    """The library file of an answer.

    Raises:
        RefusedAnswerError: this is none.
    """
    try:
        return LibraryFile(
            library=Library(told["library"]),
            path=path,
            device=None if told["device"] is None else int(told["device"]),
            inode=int(told["inode"]),
            size_bytes=int(told["size_bytes"]),
            build=_text(told["build"]),
            soname=_text(told["soname"]),
            machine=_text(told["machine"]),
        )
    except (KeyError, TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None


def taken_files(told: Any, path: Path) -> tuple[LibraryFile, ...]:
    """The library files of an answer: one for each library that the file holds.

    Raises:
        RefusedAnswerError: these are none.
    """
    if not isinstance(told, list) or len(told) > len(Library):
        raise RefusedAnswerError("the reply is malformed")
    return tuple(taken_file(one, path) for one in told)


def taken_linked(told: Mapping[str, Any], path: Path) -> Linked:
    """What was linked into a file, of an answer.

    Raises:
        RefusedAnswerError: this is none.
    """
    files = taken_files(told.get("files"), path)
    try:
        return Linked(files=files, stripped=frozenset(map(Library, told["stripped"])))
    except (KeyError, TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None


def told_of_sites(sites: Sequence[Site]) -> list[list[Any]]:
    """Sites as a question or an answer has them."""
    return [[one.op.id, one.symbol, one.file_offset, one.instruction.value, one.origin.value] for one in sites]


def taken_report(told: Any, file: LibraryFile) -> tuple[SiteReport, dict[int, int]]:
    """The sites of an answer, and those of the calls that tell of communicators or kernels.

    Raises:
        RefusedAnswerError: these are none.
    """
    try:
        sites = _taken_sites(told["sites"], file)
        by_offset = {site.file_offset: site for site in sites}
        shared = tuple(
            SharedSite(op=BY_ID[number], symbol=_text(symbol), site=by_offset[offset])
            for number, symbol, offset in told["shared"][:_MOST_SITES]
        )
        missing = tuple(MissingSite(op=BY_ID[op], reason=_text(why)) for op, why in told["missing"][:_MOST_SITES])
        telling = {_offset(at, file): int(cookie) for at, cookie in told["telling"][:_MOST_SITES]}
        return SiteReport(file=file, sites=sites, shared=shared, missing=missing), telling
    except (KeyError, TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None


def taken_offsets(told: Any, file: LibraryFile) -> DriverOffsets:
    """The driver's own entry points of an answer.

    Raises:
        RefusedAnswerError: these are none.
    """
    try:
        return DriverOffsets(
            sites=_taken_sites(told["sites"], file), replaced=_taken_sites(told["replaced"], file), asked=1
        )
    except (KeyError, TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None


def _taken_sites(told: Any, file: LibraryFile) -> tuple[Site, ...]:
    return tuple(
        Site(
            op=BY_ID[number],
            symbol=_text(symbol),
            file_offset=_offset(offset, file),
            instruction=FirstInstruction(instruction),
            origin=Origin(origin),
        )
        for number, symbol, offset, instruction, origin in told[:_MOST_SITES]
    )


def _offset(told: Any, file: LibraryFile) -> int:
    offset = int(told)
    if not 0 <= offset < file.size_bytes:
        raise ValueError
    return offset


def _text(told: Any) -> str:
    if not isinstance(told, str):
        raise TypeError
    return told[:_MOST_TEXT]


def _identify(question: Message) -> Message:
    path = Path(question.content["path"])
    files = identify_all(path, question.content["name"], question.files[0])
    return Message({"files": [told_of_file(one) for one in files]})


def _linked(question: Message) -> Message:
    found = identify_linked(Path(question.content["path"]), question.content["name"], question.files[0])
    stripped = [library.value for library in found.stripped]
    return Message({"files": [told_of_file(one) for one in found.files], "stripped": stripped})


def _sites(question: Message) -> Message:
    file = _asked(question)
    report = probe_sites(file, question.files[0])
    return Message(
        {
            "sites": told_of_sites(report.sites),
            "shared": [[one.op.id, one.symbol, one.site.file_offset] for one in report.shared],
            "missing": [[one.op.id, one.reason] for one in report.missing],
            "telling": list(telling_sites(file, question.files[0]).items()),
        }
    )


def _needed(question: Message) -> Message:
    with ElfFile(Path(question.content["path"]), question.files[0]) as elf:
        return Message({"needed": elf.needed})


def _entry_points(question: Message) -> Message:
    file = _asked(question)
    exported = _taken_sites(question.content["exported"], file)
    with ElfFile(file.path, question.files[0]) as elf:
        offsets = read_answer(elf, exported, question.content["addresses"])
    return Message({"sites": told_of_sites(offsets.sites), "replaced": told_of_sites(offsets.replaced)})


def _asked(question: Message) -> LibraryFile:
    return taken_file(question.content["file"], Path(question.content["file"]["path"]))
