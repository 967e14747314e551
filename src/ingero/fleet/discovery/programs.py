"""Runs another program within limits of time and output size; no shell, nothing of the current folder."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ingero.errors import IngeroError
from ingero.foreign_text import decoded, visible

TIMEOUT_S = 10.0  # as long as slurmctld may take under load (MessageTimeout)
MAX_BYTES = 1 << 20  # 10,000 names written out have a tenth of it
_MAX_REASON_CHARACTERS = 300


class ProgramError(IngeroError):
    """A program cannot be run, or does not answer."""


def output_of(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    hint: str,
    timeout_s: float = TIMEOUT_S,
    most_bytes: int = MAX_BYTES,
) -> str:
    """The output of a program. argv: its name, to be found in PATH, or its absolute path, and its arguments.

    Raises:
        ProgramError: it is not there, fails, takes too long or prints too much.
    """
    folders = os.pathsep.join(one for one in environ.get("PATH", os.defpath).split(os.pathsep) if one.startswith("/"))
    program = shutil.which(argv[0], path=folders)
    name = argv[0].rpartition("/")[2]
    if program is None:
        raise ProgramError(f"there is no program {name} on this host", hint=hint)
    try:
        process = subprocess.Popen(
            [program, *argv[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(environ) | {"LC_ALL": "C"}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise ProgramError(f"{name} cannot be run: {error.strerror}", hint=hint) from error
    try:
        printed, stderr = _outputs(process, name, hint, time.monotonic() + timeout_s, timeout_s, most_bytes)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started as well
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
    if process.returncode:
        why = visible(decoded(stderr, most=_MAX_REASON_CHARACTERS).strip()) or f"it ended with {process.returncode}"
        raise ProgramError(f"{name} does not say it: {why}", hint=hint)
    return decoded(printed, most=most_bytes)


def _outputs(
    process: subprocess.Popen[bytes], name: str, hint: str, until_s: float, timeout_s: float, most_bytes: int
) -> tuple[bytes, bytes]:
    """Both outputs of a program, once it has ended. until_s: CLOCK_MONOTONIC."""
    assert process.stdout is not None
    assert process.stderr is not None
    found = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as ready:
        for number in found:
            ready.register(number, selectors.EVENT_READ)
        while ready.get_map():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise ProgramError(f"{name} did not answer within {timeout_s:g} s", hint=hint)
            for key, _ in ready.select(left_s):
                piece = os.read(key.fd, 1 << 16)
                found[key.fd] += piece
                if len(found[key.fd]) > most_bytes:
                    raise ProgramError(f"{name} prints more than {most_bytes >> 10} KiB", hint=hint)
                if not piece:
                    ready.unregister(key.fd)
    try:
        process.wait(max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{name} did not end within {timeout_s:g} s", hint=hint) from None
    return tuple(bytes(one) for one in found.values())  # type: ignore[return-value]  # there are two
