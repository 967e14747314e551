"""Reads packed files (gzip, bzip2, xz) and collections (tar, zip, folders) within a budget of bytes."""

from __future__ import annotations

import bz2
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Protocol, cast

from ingero.profiles.columns import printable
from ingero.profiles.model import ProfileError
from ingero.units import format_bytes

CHUNK_BYTES = 1 << 20
MAX_FILES = 4096  # of a folder or a tar: as many ranks
_HEAD_BYTES = 512
_PACKED_BYTES = 4096  # read at a time: data lost before a damage is at most what these unpack to
_GZIP = b"\x1f\x8b"
_BZIP2 = b"BZh"
_ZIP = b"PK\x03\x04"
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)  # lzma's memory cannot be bounded
_ZIP_END = struct.Struct("<4sHHHHIIH")  # "end of central directory record" of PKWARE's APPNOTE
_ZIP_END_BYTES = 22 + (1 << 16)  # with its comment
_MAX_LAYERS = 3  # such as a tar.gz of packed files
_XZ_MEMORY_BYTES = 256 << 20  # xz -9 takes 65 MiB
_TAR_MARK = slice(257, 262)
# The errors of reading a cut or damaged file.
_DAMAGES = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes; none at the end."""


class Budget:
    """The number of bytes that may still be unpacked."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = self._left = limit_bytes

    def take(self, count: int) -> None:
        """Counts bytes.

        Raises:
            ProfileError: there are more than allowed.
        """
        self._left -= count
        if self._left < 0:
            raise ProfileError(
                f"the files hold more than {format_bytes(self._limit)}",
                hint="import fewer files at once, or allow more: --max-size 64GiB",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file that is neither packed nor a collection. path: of the unpacked file; None: it is only in the stream.

    is_named: the user named it, so it must be a profile.
    """

    name: str
    head: bytes
    stream: Readable
    path: Path | None
    is_named: bool

    def chunks(self, budget: Budget) -> Iterator[bytes]:
        """The bytes of the file, up to where it is cut or damaged."""
        data = self.head
        while data:
            budget.take(len(data))
            yield data
            data = self._next_chunk()

    def _next_chunk(self) -> bytes:
        """The next chunk, joined from the pieces that the stream returns."""
        pieces: list[bytes] = []
        missing = CHUNK_BYTES
        with suppress(*_DAMAGES):
            while missing > 0 and (piece := self.stream.read(missing)):
                pieces.append(piece)
                missing -= len(piece)
        return b"".join(pieces)


def entries(path: Path) -> Iterator[Entry]:
    """The files at a path: itself, or those of a folder, tar or zip, in order. Read each before taking the next.

    Raises:
        ProfileError: it cannot be read, or is damaged from its beginning.
    """
    is_folder = path.is_dir()
    for file in _files(path) if is_folder else [path]:
        try:
            with file.open("rb") as stream:
                begin = stream.read(len(_ZIP))
                if begin == _ZIP:
                    yield from _zipped(stream, file.name)
                else:
                    yield from _entries(_Rejoined(begin, stream), file.name, file, is_named=not is_folder, layers=0)
        except OSError as error:
            raise ProfileError(f"cannot read {file}: {error.strerror or error}") from error


def _files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if len(found) > MAX_FILES:
        raise ProfileError(f"{folder} has more than {MAX_FILES} files", hint="name the files of one job")
    return found


def _entries(stream: Readable, name: str, path: Path | None, *, is_named: bool, layers: int) -> Iterator[Entry]:
    try:
        head = _read_head(stream)
    except _DAMAGES as error:
        raise ProfileError(f"{printable(name)} is damaged from its beginning") from error
    whole = _Rejoined(head, stream)
    inner = _unpacker(head, whole)
    if inner is not None and layers < _MAX_LAYERS:
        unpacked = name.removesuffix(".gz").removesuffix(".xz").removesuffix(".bz2")
        yield from _entries(inner, unpacked, None, is_named=is_named, layers=layers + 1)
    elif head[_TAR_MARK] == b"ustar" and layers < _MAX_LAYERS:
        yield from _members(whole, name, layers)
    else:
        yield Entry(name=printable(name), head=head, stream=stream, path=path, is_named=is_named)


def _zipped(file: BinaryIO, name: str) -> Iterator[Entry]:
    """The files of a zip; damaged ones end at the damage."""
    if not _has_short_list(file):
        raise ProfileError(
            f"{printable(name)} is cut, or a zip of more than {MAX_FILES} files or 4 GiB",
            hint="unpack it, and name its folder",
        )
    try:
        with zipfile.ZipFile(file) as packed:
            for member in packed.infolist():
                if member.compress_type not in _ZIP_METHODS:
                    raise NotImplementedError("it is packed in another way than others are")
                with packed.open(member) as stream:
                    yield from _entries(_ZipMember(stream), Path(member.filename).name, None, is_named=False, layers=1)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        reason = printable(str(error))
        raise ProfileError(f"{printable(name)} cannot be unpacked: {reason}", hint="unpack it elsewhere") from error


def _has_short_list(file: BinaryIO) -> bool:
    """Whether the list of files of a zip is short enough, because Python reads it as a whole."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ZIP_END_BYTES))
    end = file.read(_ZIP_END_BYTES)
    at = end.rfind(b"PK\x05\x06")
    if at < 0 or len(end) < at + _ZIP_END.size or b"PK\x06\x07" in end:  # the second: a list of the 64-bit kind
        return False
    _, _, _, _, count, list_bytes, _, _ = _ZIP_END.unpack_from(end, at)
    return bool(count <= MAX_FILES and list_bytes <= CHUNK_BYTES)


def _read_head(stream: Readable) -> bytes:
    head = b""
    while len(head) < _HEAD_BYTES and (more := stream.read(_HEAD_BYTES - len(head))):
        head += more
    return head


def _unpacker(head: bytes, whole: _Rejoined) -> Readable | None:
    if head.startswith(_GZIP):
        return _Gzip(whole)
    if head.startswith(_BZIP2):
        return _Bzip2(whole)
    return _Xz(whole) if head.startswith(b"\xfd7zXZ\0") else None


def _members(stream: Readable, name: str, layers: int) -> Iterator[Entry]:
    """The files of a tar, up to the first damage."""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as tar:  # type: ignore[call-overload]  # it only reads
            for number, member in enumerate(tar):
                if number >= MAX_FILES:
                    raise ProfileError(
                        f"{printable(name)} has more than {MAX_FILES} files", hint="unpack it, and name its folder"
                    )
                file = tar.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield from _entries(file, Path(member.name).name, None, is_named=False, layers=layers + 1)
    except _DAMAGES:
        return


class _Rejoined:
    """A stream that starts again with the bytes already read from it."""

    def __init__(self, head: bytes, stream: Readable) -> None:
        self._head, self._stream = head, stream

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes."""
        if self._head:
            data, self._head = (self._head, b"") if size < 0 else (self._head[:size], self._head[size:])
            return data
        return self._stream.read(size)


class _ZipMember:
    """Reads a file of a zip in small pieces, so that all data before a damage is returned."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = cast("zipfile.ZipExtFile", stream)

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes."""
        return self._stream.read1(min(size, _PACKED_BYTES) if size > 0 else _PACKED_BYTES)


class _Gzip:
    """Reads a gzip file; unlike gzip.GzipFile it returns all data before a cut."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes.

        Raises:
            EOFError: the file is cut.
        """
        packed = self._decoder.unconsumed_tail
        while True:
            if self._decoder.eof:
                packed = self._decoder.unused_data.lstrip(b"\0") or self._stream.read(_PACKED_BYTES)
                if not packed.startswith(_GZIP):
                    return b""
                self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
            packed = packed or self._stream.read(_PACKED_BYTES)
            if not packed:
                raise EOFError("cut")
            data = self._decoder.decompress(packed, size if size > 0 else CHUNK_BYTES)
            if data:
                return data
            packed = self._decoder.unconsumed_tail


class _Bzip2:
    """Reads a bzip2 file of one or more streams."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._decoder = bz2.BZ2Decompressor()

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes.

        Raises:
            EOFError: the file is cut or damaged.
        """
        try:
            return self._read(size if size > 0 else CHUNK_BYTES)
        except OSError as error:  # bz2 raises it for invalid data
            raise EOFError("damaged") from error

    def _read(self, size: int) -> bytes:
        while True:
            packed = b""
            if self._decoder.eof:
                packed = self._decoder.unused_data or self._stream.read(_PACKED_BYTES)
                if not packed.startswith(_BZIP2):
                    return b""
                self._decoder = bz2.BZ2Decompressor()
            elif self._decoder.needs_input:
                packed = self._stream.read(_PACKED_BYTES)
                if not packed:
                    raise EOFError("cut")
            data = self._decoder.decompress(packed, size)
            if data:
                return data


class _Xz:
    """Reads an xz file; unlike lzma.LZMAFile it bounds the memory that the file may demand."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._decoder = lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes.

        Raises:
            EOFError: the file is cut.
        """
        while not self._decoder.eof:
            packed = self._stream.read(CHUNK_BYTES) if self._decoder.needs_input else b""
            if not packed and self._decoder.needs_input:
                raise EOFError("cut")
            data = self._decoder.decompress(packed, size if size > 0 else CHUNK_BYTES)
            if data:
                return data
        return b""
