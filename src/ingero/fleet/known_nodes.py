"""Nodes pinned to the certificate that they showed first, for nodes without a certificate authority (`--pin`).

One line per node, `gpu-01:8080 SHA256 2026-11-26`, in a file of the asking user. A node that shows another certificate
is not queried: a man in the middle would look the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ingero.errors import IngeroError
from ingero.fleet.node_lists import Node
from ingero.foreign_text import shell_word
from ingero.program import command
from ingero.store.opening.locations import Owner, make_folders

FILE_NAME = "known_nodes"
_LINE = re.compile(r"([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\]):([0-9]{1,5}) ([0-9A-F]{64}) (\d{4}-\d\d-\d\d)")
_MAX_BYTES = 4 << 20
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_HEAD = (
    "# nodes by the SHA-256 of their certificates, as `ingero --pin` saw them first; `ingero certs forget` removes\n"
)


class KnownNodeError(IngeroError):
    """A node shows another certificate than the one it is known by."""


class KnownNodesError(IngeroError):
    """The file of known nodes cannot be used."""


@dataclass(frozen=True, slots=True)
class Known:
    """A pinned certificate. sha256: of its DER form, in hexadecimal digits. since: the day it was first seen, UTC."""

    sha256: str
    since: str

    @property
    def fingerprint(self) -> str:
        """The fingerprint as a node's own server prints it."""
        return ":".join(self.sha256[at : at + 2] for at in range(0, len(self.sha256), 2))


class KnownNodes:
    """Pinned nodes of one file, and new ones, which `keep` adds to it. Threads may share it.

    owner: the owner that the file gets if root creates it; None: the current user. kept: what `keep` has added, by
    address.
    """

    def __init__(self, path: Path, owner: Owner | None = None) -> None:
        """Read the file.

        Raises:
            KnownNodesError: it cannot be read, others may write it, or it holds something else.
        """
        self.path = path
        self.kept: dict[str, Known] = {}
        self._owner = owner
        self._known = _read(path)
        self._new: dict[str, Known] = {}
        self._lock = threading.Lock()

    def check(self, node: Node, certificate: bytes) -> None:
        """Check a node's certificate (DER) against the pinned one; an unknown node is pinned to it from now on.

        Raises:
            KnownNodeError: it shows another one.
            KnownNodesError: the file cannot be read again.
        """
        shown = Known(hashlib.sha256(certificate).hexdigest().upper(), f"{datetime.now(timezone.utc):%Y-%m-%d}")
        with self._lock:
            known = self._known.get(node.authority)
            if known is not None and known.sha256 != shown.sha256:
                self._known = self._new | _read(self.path)  # whoever asks for days learns that it was forgotten
                known = self._known.get(node.authority)
            if known is None:
                self._known[node.authority] = self._new[node.authority] = shown
                return
        if known.sha256 != shown.sha256:
            raise KnownNodeError(
                f"its certificate is not the one it is known by since {known.since}: SHA-256 {shown.fingerprint} "
                f"instead of {known.fingerprint}",
                hint=f"somebody else may answer there; if it was given a new certificate: "
                f"{command('certs', 'forget', str(node))}, and compare what is shown next with what its dashboard "
                "prints",
            )

    def keep(self) -> None:
        """Add nodes seen for the first time to the file.

        Raises:
            KnownNodesError: it cannot be written; the next time they are tried again.
        """
        with self._lock:
            if not self._new:
                return
            with _locked(self.path, self._owner):
                self._known = self._new | _read(self.path)  # what another process kept first, stays
                _write(self.path, self._known, self._owner)
            self.kept |= {node: one for node, one in self._new.items() if self._known[node] == one}
            self._new = {}


def forget(path: Path, nodes: Collection[Node], owner: Owner | None = None) -> list[Node]:
    """Remove nodes from the file; returns those that were in it.

    Raises:
        KnownNodesError: it cannot be read or written.
    """
    if not path.exists():
        return []
    with _locked(path, owner):
        known = _read(path)
        found = [node for node in nodes if known.pop(node.authority, None)]
        if found:
            _write(path, known, owner)
    return found


def _read(path: Path) -> dict[str, Known]:
    way_out = f"remove the line, or {shell_word(path)} itself: nodes are then new once more"
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KnownNodesError(f"{path}: {error.strerror}", hint="its owner may read it") from error
    if mode & _OTHERS:
        raise KnownNodesError(f"others may write {path}", hint=f"look through it, then chmod 600 {shell_word(path)}")
    if len(raw) > _MAX_BYTES:
        raise KnownNodesError(f"{path} is larger than {_MAX_BYTES >> 20} MiB", hint=way_out)
    found: dict[str, Known] = {}
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise KnownNodesError(f"{path}, line {number}: it is not a known node", hint=way_out)
        found[f"{match[1]}:{match[2]}"] = Known(match[3], match[4])
    return found


def _write(path: Path, known: Mapping[str, Known], owner: Owner | None) -> None:
    """Replace the file atomically."""
    lines = [f"{node} {one.sha256} {one.since}\n" for node, one in sorted(known.items())]
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            if owner is not None:
                os.fchown(handle, owner.uid, owner.gid)
            file.writelines([_HEAD, *lines])
            file.flush()
            os.fsync(handle)
        beside.replace(path)
    except OSError as error:
        raise KnownNodesError(f"{path}: {error.strerror}", hint="nodes can be known where it can be written") from error


@contextmanager
def _locked(path: Path, owner: Owner | None) -> Iterator[None]:
    """Hold the lock under which one process at a time reads and writes the file."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        make_folders(path.parent, 0o700, None if owner is None else (owner.uid, owner.gid))
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if owner is not None:
                os.fchown(handle, owner.uid, owner.gid)
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
    except OSError as error:
        raise KnownNodesError(f"{path}: {error.strerror}", hint="nodes can be known where it can be written") from error
