"""Tasks of a sandboxed reader on open library files, and the validation of its answers, which are not trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ingero.discover.driver_offsets import DriverOffsets, read_answer
from ingero.discover.elf import ElfFile
from ingero.discover.instructions import FirstInstruction
from ingero.discover.library_files import LibraryFile, identify_all
from ingero.discover.library_reader import naming_sites
from ingero.discover.linked_libraries import LinkedLibraries, identify_linked
from ingero.discover.sites import MissingSite, Origin, SharedSite, Site, SiteReport, probe_sites
from ingero.ops import BY_ID, Library
from ingero.sandbox.messages import Message
from ingero.sandbox.nursery import Task
from ingero.sandbox.process import RefusedAnswerError

_MAX_SITES = 4096  # there are 200 traced calls, with five names each
_MAX_TEXT = 4096


def tasks() -> Mapping[str, Task]:
    """The tasks by name; each question has one file."""
    return {
        "identify": _identify,
        "linked": _linked,
        "sites": _sites,
        "needed": _needed,
        "entry_points": _entry_points,
    }


def file_content(file: LibraryFile) -> dict[str, Any]:
    """A library file as content of a message."""
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


def file_from(content: Any, path: Path) -> LibraryFile:
    """The library file in an answer, validated.

    Raises:
        RefusedAnswerError: this is none.
    """
    try:
        return LibraryFile(
            library=Library(content["library"]),
            path=path,
            device=None if content["device"] is None else int(content["device"]),
            inode=int(content["inode"]),
            size_bytes=int(content["size_bytes"]),
            build=_text(content["build"]),
            soname=_text(content["soname"]),
            machine=_text(content["machine"]),
        )
    except (KeyError, TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None


def files_from(content: Any, path: Path) -> tuple[LibraryFile, ...]:
    """The library files in an answer, validated: one for each library that the file holds.

    Raises:
        RefusedAnswerError: these are none.
    """
    if not isinstance(content, list) or len(content) > len(Library):
        raise RefusedAnswerError("the reply is malformed")
    return tuple(file_from(one, path) for one in content)


def linked_from(content: Mapping[str, Any], path: Path) -> LinkedLibraries:
    """The linked libraries in an answer, validated.

    Raises:
        RefusedAnswerError: this is none.
    """
    files = files_from(content.get("files"), path)
    try:
        return LinkedLibraries(files=files, stripped=frozenset(map(Library, content["stripped"])))
    except (KeyError, TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None


def sites_content(sites: Sequence[Site]) -> list[list[Any]]:
    """Sites as content of a message."""
    return [[one.op.id, one.symbol, one.file_offset, one.instruction.value, one.origin.value] for one in sites]


def report_from(content: Any, file: LibraryFile) -> tuple[SiteReport, dict[int, int]]:
    """The sites in an answer, validated, and those of calls that name communicators or kernels.

    Raises:
        RefusedAnswerError: these are none.
    """
    try:
        sites = _sites_from(content["sites"], file)
        by_offset = {site.file_offset: site for site in sites}
        shared = tuple(
            SharedSite(op=BY_ID[number], symbol=_text(symbol), site=by_offset[offset])
            for number, symbol, offset in content["shared"][:_MAX_SITES]
        )
        missing = tuple(MissingSite(op=BY_ID[op], reason=_text(why)) for op, why in content["missing"][:_MAX_SITES])
        naming = {_offset(at, file): int(cookie) for at, cookie in content["telling"][:_MAX_SITES]}
        return SiteReport(file=file, sites=sites, shared=shared, missing=missing), naming
    except (KeyError, TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None


def offsets_from(content: Any, file: LibraryFile) -> DriverOffsets:
    """The driver's entry points in an answer, validated.

    Raises:
        RefusedAnswerError: these are none.
    """
    try:
        return DriverOffsets(
            sites=_sites_from(content["sites"], file), replaced=_sites_from(content["replaced"], file), asked=1
        )
    except (KeyError, TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None


def _sites_from(content: Any, file: LibraryFile) -> tuple[Site, ...]:
    return tuple(
        Site(
            op=BY_ID[number],
            symbol=_text(symbol),
            file_offset=_offset(offset, file),
            instruction=FirstInstruction(instruction),
            origin=Origin(origin),
        )
        for number, symbol, offset, instruction, origin in content[:_MAX_SITES]
    )


def _offset(content: Any, file: LibraryFile) -> int:
    offset = int(content)
    if not 0 <= offset < file.size_bytes:
        raise ValueError
    return offset


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise TypeError
    return content[:_MAX_TEXT]


def _identify(question: Message) -> Message:
    path = Path(question.content["path"])
    files = identify_all(path, question.content["name"], question.files[0])
    return Message({"files": [file_content(one) for one in files]})


def _linked(question: Message) -> Message:
    found = identify_linked(Path(question.content["path"]), question.content["name"], question.files[0])
    stripped = [library.value for library in found.stripped]
    return Message({"files": [file_content(one) for one in found.files], "stripped": stripped})


def _sites(question: Message) -> Message:
    file = _asked(question)
    report = probe_sites(file, question.files[0])
    return Message(
        {
            "sites": sites_content(report.sites),
            "shared": [[one.op.id, one.symbol, one.site.file_offset] for one in report.shared],
            "missing": [[one.op.id, one.reason] for one in report.missing],
            "telling": list(naming_sites(file, question.files[0]).items()),
        }
    )


def _needed(question: Message) -> Message:
    with ElfFile(Path(question.content["path"]), question.files[0]) as elf:
        return Message({"needed": elf.needed})


def _entry_points(question: Message) -> Message:
    file = _asked(question)
    exported = _sites_from(question.content["exported"], file)
    with ElfFile(file.path, question.files[0]) as elf:
        offsets = read_answer(elf, exported, question.content["addresses"])
    return Message({"sites": sites_content(offsets.sites), "replaced": sites_content(offsets.replaced)})


def _asked(question: Message) -> LibraryFile:
    return file_from(question.content["file"], Path(question.content["file"]["path"]))
