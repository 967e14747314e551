"""Reads profiles from files and folders of any supported tool and packing, recognized by content."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ingero.foreign_text import shell_word
from ingero.profiles.kineto import read_kineto
from ingero.profiles.model import Notes, Profile, ProfileError
from ingero.profiles.nsight import is_nsight, read_nsight
from ingero.profiles.rpd import is_rpd, read_rpd
from ingero.profiles.sqlite_file import SqliteFile
from ingero.profiles.unpacking import Budget, Entry, entries

# Unpacked bytes. A profile of ten seconds of training has up to 1 GB of JSON; a bomb unpacks to more than any disk.
MAX_BYTES = 16 << 30
_RANK = re.compile(r"(?:rank|worker)[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)  # rank-3.json, worker3_step_12.json
BY_NAME = "no file states its rank: ranks are taken from the file names"
_SQLITE = b"SQLite format 3\0"
_BOM = b"\xef\xbb\xbf"
# Files of tools that cannot be imported, by the end of their name.
_OTHERS = {
    (".nsys-rep", ".qdrep"): ("a report of Nsight Systems", "nsys export --type sqlite {name}"),
    (".ncu-rep",): ("a report of Nsight Compute, of single kernels", "profile the program with Nsight Systems"),
    (".xplane.pb",): ("a profile of JAX or TensorFlow as protocol buffers", "import the .trace.json.gz beside it"),
    (".pickle", ".pkl"): ("no trace", "export one with torch.profiler: prof.export_chrome_trace('trace.json')"),
    (".zst",): ("packed with zstd", "unzstd {name}"),
    (".pftrace", ".perfetto-trace"): ("a trace of Perfetto", "import what the profiler itself wrote"),
}
OF_EMPTY_PROCESSES = "of processes without any call, activity or range"
HINT = "import takes traces of PyTorch's and JAX's profilers (.json, .json.gz), Nsight exports (.sqlite) and RPD files"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedProfiles:
    """The profiles of all processes in the files, remarks about them, and the names of files that held one."""

    profiles: list[Profile]
    notes: Notes
    files: list[str]


def read_profiles(paths: Sequence[Path], *, max_bytes: int = MAX_BYTES) -> ImportedProfiles:
    """Reads all profiles at these paths; a folder or a tar holds the processes of one job.

    Raises:
        ProfileError: a file cannot be read, is not a profile, or holds no usable data.
    """
    budget, notes = Budget(max_bytes), Notes()
    profiles: list[Profile] = []
    files: list[str] = []
    for path in paths:
        for entry in entries(path):
            found = _read_entry(entry, budget, notes)
            profiles += found
            if found:
                files.append(entry.name)
    if not profiles:
        why = f": {notes.lacks[0]}" if notes.lacks else ""
        raise ProfileError(f"nothing to import in {', '.join(map(str, paths[:3]))}{why}", hint=HINT)
    return ImportedProfiles(profiles=_ranked_by_name(profiles, notes), notes=notes, files=files)


def _ranked_by_name(profiles: list[Profile], notes: Notes) -> list[Profile]:
    """The profiles with ranks from their file names, where no file states one and all names differ in it."""
    found = [_RANK.search(profile.origin.file) for profile in profiles]
    ranks = {int(name[1]) for name in found if name}
    if len(ranks) < max(2, len(profiles)) or any(profile.rank is not None for profile in profiles):
        return profiles
    notes.lacks.append(BY_NAME)
    return [replace(profile, rank=int(name[1])) for profile, name in zip(profiles, found, strict=True) if name]


def _read_entry(entry: Entry, budget: Budget, notes: Notes) -> list[Profile]:
    try:
        read = _profiles_of(entry, budget, notes)
    except ProfileError as error:
        if entry.is_named:
            raise
        notes.lacks.append(f"{entry.name} was skipped: {error}")
        return []
    found = [profile for profile in read if not profile.is_empty]
    if empty := len(read) - len(found):
        notes.dropped[OF_EMPTY_PROCESSES] += empty
    if not found and entry.is_named:
        raise ProfileError(f"{entry.name} holds no GPU call and no GPU activity", hint=HINT)
    return found


def _profiles_of(entry: Entry, budget: Budget, notes: Notes) -> list[Profile]:
    if entry.head.startswith(_SQLITE):
        return _from_sqlite(entry, budget, notes)
    if entry.head.removeprefix(_BOM).lstrip()[:1] in (b"{", b"["):
        return read_kineto(entry.chunks(budget), entry.name, notes)
    for ends, (what, hint) in _OTHERS.items():
        if entry.name.endswith(ends):
            raise ProfileError(f"{entry.name} is {what}", hint=hint.format(name=shell_word(entry.name)))
    raise ProfileError(f"{entry.name} is not a profile that can be imported", hint=HINT)


def _from_sqlite(entry: Entry, budget: Budget, notes: Notes) -> list[Profile]:
    if entry.path is not None:
        budget.take(entry.path.stat().st_size)
        return _from_database(entry.path, entry.name, notes)
    with tempfile.TemporaryDirectory(prefix="ingero-import-") as folder:
        path = Path(folder) / "profile.sqlite"
        with path.open("wb") as file:
            for chunk in entry.chunks(budget):
                if shutil.disk_usage(folder).free < 2 * len(chunk):
                    raise ProfileError(f"no room to unpack {entry.name}", hint="unpack it elsewhere, then import it")
                file.write(chunk)
        return _from_database(path, entry.name, notes)


def _from_database(path: Path, name: str, notes: Notes) -> list[Profile]:
    with SqliteFile(path, name) as file:
        if is_nsight(file):
            return read_nsight(file, notes)
        if is_rpd(file):
            return read_rpd(file, notes)
    raise ProfileError(f"{name} is an SQLite file, but neither of Nsight Systems nor of RPD", hint=HINT)
