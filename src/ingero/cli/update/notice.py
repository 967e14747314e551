"""Prints after a command that a newer version exists, if ingero.yaml says `update-check: true`.

The command never waits: it prints the result that an earlier background process has left in ~/.ingero/update-check,
and starts a new one where that is a day old.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ingero import __version__
from ingero.cli.config.file import CONFIG_VARIABLE, find_config
from ingero.cli.config.given import given_values, value_of
from ingero.cli.config.option_table import GENERAL
from ingero.cli.output import echo
from ingero.cli.update.source import TIMEOUT_S, is_newer, newest_version, parts_of
from ingero.errors import IngeroError
from ingero.store.opening.locations import Owner, invoking_user

SILENCE_VARIABLE = "INGERO_NO_UPDATE_NOTIFIER"
CI_VARIABLE = "CI"  # set by continuous integration services
FILE_NAME = "update-check"
_DAY_S = 86_400
_MAX_BYTES = 4096
_QUIET = re.compile(r"(0|false|no|off)?", re.IGNORECASE)
_CHECK, _URL = GENERAL
# Passed to the child, because interpreters of an image or of a release's tree do not have it on their path.
_PACKAGES = Path(__file__).resolve().parents[2]
_CHILD = """\
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ingero.cli.update.notice import ask
ask(sys.argv[2], Path(sys.argv[3]))
"""


@dataclass(frozen=True, slots=True)
class Known:
    """The last check for a newer version. asked_s: unix time, 0: never. version: "": unknown."""

    asked_s: float = 0.0
    version: str = ""

    def is_due(self, now_s: float) -> bool:
        """Whether to check again; also after the clock was set back."""
        return not 0 <= now_s - self.asked_s < _DAY_S


def is_interactive(environ: Mapping[str, str], streams: tuple[IO[str], ...]) -> bool:
    """Whether a user reads the output: not in a service, a pipe or CI, nor where the notice is silenced."""
    if environ.get(SILENCE_VARIABLE) or environ.get("NOTIFY_SOCKET"):
        return False
    if not _QUIET.fullmatch(environ.get(CI_VARIABLE, "")):
        return False
    try:
        return all(stream.isatty() for stream in streams)
    except (AttributeError, ValueError):  # one is closed, or there is none
        return False


def print_notice(environ: Mapping[str, str], *, uid: int) -> None:
    """Prints the notice if there is a newer version, and starts a check if the last is old. Errors are ignored."""
    with suppress(IngeroError, OSError, ValueError):
        owner = invoking_user(environ, uid=uid)
        if not _is_wanted(environ, owner):
            return
        path = owner.home / ".ingero" / FILE_NAME
        known = read_known(path)
        if is_newer(known.version, __version__):
            echo(
                f"ingero {known.version} is there, this is {__version__} ({SILENCE_VARIABLE}=1 silences this)", err=True
            )
        if known.is_due(time.time()):
            ask_in_background(update_url(environ, owner), path, owner)


def update_url(environ: Mapping[str, str], owner: Owner) -> str:
    """The URL to check.

    Raises:
        IngeroError: ingero.yaml or the variable cannot be used.
    """
    given = given_values([_URL], {}, environ, find_config(environ.get(CONFIG_VARIABLE), owner.home))
    return str(value_of(_URL, given.get(_URL.name)))


def _is_wanted(environ: Mapping[str, str], owner: Owner) -> bool:
    given = given_values([_CHECK], {}, environ, find_config(environ.get(CONFIG_VARIABLE), owner.home))
    return bool(value_of(_CHECK, given.get(_CHECK.name)))


def read_known(path: Path) -> Known:
    """The content of the file; empty where it is missing or malformed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Known()
    try:
        text = os.read(descriptor, _MAX_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return Known()
    finally:
        os.close(descriptor)
    try:
        found = json.loads(text)
        version = found["version"]
        return Known(float(found["asked_s"]), version if isinstance(version, str) and parts_of(version) else "")
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return Known()


def write_known(path: Path, known: Known) -> None:
    """Writes the file, whole or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(mode=0o755, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"asked_s": known.asked_s, "version": known.version}, file)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def ask_in_background(url: str, path: Path, owner: Owner) -> subprocess.Popen[bytes]:
    """Starts a process that checks, as the owner of the file; never as root for another user.

    Raises:
        OSError: no process can be started.
    """
    is_somebody_else = os.geteuid() == 0 and owner.uid != 0
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(_PACKAGES), url, str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",  # Python would import modules from the current folder
        start_new_session=True,
        user=owner.uid if is_somebody_else else None,
        group=owner.gid if is_somebody_else else None,
        extra_groups=[] if is_somebody_else else None,
    )


def ask(url: str, path: Path) -> None:
    """Checks for a newer version. The time is written first, so that a failing check is not repeated each time."""
    signal.alarm(int(TIMEOUT_S) * 3)
    before = read_known(path)
    write_known(path, Known(time.time(), before.version))
    with suppress(IngeroError):
        write_known(path, Known(time.time(), newest_version(url)))
