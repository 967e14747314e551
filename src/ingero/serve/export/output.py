"""The output file of an export: complete, or not there at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ingero.errors import IngeroError
from ingero.foreign_text import shell_word
from ingero.serve.backlog import Sink, standard_output

STANDARD_OUTPUT = Path("-")

_BUFFER_BYTES = 1 << 20


class OutputError(IngeroError):
    """The file of an export cannot be written."""


def refuse_recording(output: Path, recording: Path) -> None:
    """Raise OutputError if the output file is the recording that is read."""
    try:
        is_same = output.samefile(recording)
    except OSError:  # there is no such file yet
        return
    if is_same:
        raise OutputError(f"{output} is the recording itself", hint="name another file")


@contextmanager
def output_file(path: Path) -> Iterator[Sink]:
    """A file to write to, put in place of `path` when everything is written; `-` is standard output.

    Raises:
        OutputError: it is a folder, its folder is missing, may not be written to, or is full.
    """
    if path == STANDARD_OUTPUT:
        with standard_output() as sink:  # of a recording that goes on, whoever reads this must not hold the log
            yield sink
        return
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder", hint=f"name a file in it: -o {shell_word(path / 'recording')}")
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device has no place to be put into
            with path.open("wb", buffering=_BUFFER_BYTES) as file:
                yield file
            return
        with _beside(path) as file:
            yield file
    except OSError as error:
        raise _output_error(path, error) from error


@contextmanager
def _beside(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of the other, or vanishes."""
    target = path.resolve()  # what a link points to is replaced, not the link
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb", buffering=_BUFFER_BYTES) as file:
            yield file
        Path(name).chmod(_mode(target))
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _mode(target: Path) -> int:
    """The mode of the file that was there, else that of a new file."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _output_error(path: Path, error: OSError) -> OSError | OutputError:
    if isinstance(error, BrokenPipeError):  # somebody has seen enough: the command line knows what to do
        return error
    folder = shell_word(path.absolute().parent)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"make room (`df -h {folder}`), name another disk with -o, or shorten it with --since"
        return OutputError(f"cannot write {path}: the disk is full", hint=hint)
    if error.errno == errno.ENOENT:
        return OutputError(
            f"cannot write {path}: its folder does not exist",
            hint=f"mkdir -p {folder}",
        )
    return OutputError(
        f"cannot write {path}: {error.strerror}",
        hint=f"`ls -ld {folder}`, or another -o",
    )
