"""Debian's interpreters, unpacked into folders that a process can be locked into with `chroot`; nothing is installed.

apt runs with a configuration of its own, so the machine's package lists and its installed packages are not touched.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[2] / "build" / "stacks"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SOURCES = Path("/etc/apt")
_ARCHIVE = re.compile(r"^(?:URIs:|deb\s(?:\[[^\]]*\])?)\s*(\S+/debian)/?(?:\s|$)", re.MULTILINE)
_LINKS = ("bin", "sbin", "lib", "lib64")  # the folders that lie in usr/ since Debian 12


@dataclass(frozen=True, slots=True)
class Suite:
    """versions: of Python. extra: packages from other suites: the simulated GPU needs the C library of this machine."""

    name: str
    versions: tuple[str, ...]
    debug: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """Where it is unpacked."""
        return CACHE / self.name


SUITES = (
    Suite("bullseye", ("3.9",), others=("bookworm",), extra=("libc6/bookworm",)),
    Suite("trixie", ("3.13",), debug=("3.13",)),
    Suite("sid", ("3.13", "3.14", "3.15")),
)


def fetch(suite: Suite) -> None:
    """Downloads and unpacks a suite's interpreters, once."""
    done = suite.root / ".unpacked"
    packages = [*_packages(suite), *suite.extra]
    if done.exists() and done.read_text() == " ".join(packages):
        return
    shutil.rmtree(suite.root, ignore_errors=True)
    apt = CACHE / "apt" / suite.name
    options = _configuration(apt, [suite.name, *suite.others])
    subprocess.run(["apt-get", *options, "-qq", "update"], check=True)
    command = ["apt-get", *options, "-qq", "--no-install-recommends", "--download-only", "-y", "install", *packages]
    subprocess.run(command, check=True)
    for link in _LINKS:
        (suite.root / "usr" / link).mkdir(parents=True)
        (suite.root / link).symlink_to(f"usr/{link}")
    for archive in sorted((apt / "cache" / "archives").glob("*.deb")):
        _unpack(archive, suite.root)
    for name in ("tmp", "proc", "dev"):
        (suite.root / name).mkdir(exist_ok=True)
    done.write_text(" ".join(packages))


def _packages(suite: Suite) -> list[str]:
    return [f"python{version}" for version in suite.versions] + [f"python{version}-dbg" for version in suite.debug]


def _mirror() -> str:
    """Where this machine gets Debian's packages from; its other suites lie there, too."""
    for path in (_SOURCES / "sources.list", *sorted((_SOURCES / "sources.list.d").glob("*"))):
        found = _ARCHIVE.search(path.read_text()) if path.is_file() else None
        if found:
            return found.group(1)
    raise SystemExit("no archive of Debian is configured in /etc/apt: make test-stacks needs one")


def _configuration(folder: Path, suites: Sequence[str], kind: str = "deb") -> list[str]:
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    mirror = _mirror()
    lines = [f"{kind} [signed-by={_KEYS}] {mirror} {suite} main\n" for suite in suites]
    (folder / "sources.list").write_text("".join(lines))
    values = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "APT::Sandbox::User": "root",
        "APT::Default-Release": suites[0],
        "Acquire::Languages": "none",
    }
    return [f"-o{name}={value}" for name, value in values.items()]


def _unpack(archive: Path, root: Path) -> None:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as packed:
        command = ["tar", "-x", "--keep-directory-symlink", "-C", root]
        subprocess.run(command, stdin=packed.stdout, check=True)
    if packed.returncode:
        raise OSError(f"{archive.name} cannot be unpacked")


def source(suite: str, package: str, folder: Path) -> Path:
    """Downloads the upstream source of a package."""
    apt = CACHE / "apt" / f"{suite}-source"
    options = _configuration(apt, [suite], kind="deb-src")
    subprocess.run(["apt-get", *options, "-qq", "update"], check=True)
    folder.mkdir(parents=True, exist_ok=True)
    command = ["apt-get", *options, "-qq", "source", "--download-only", "--tar-only", package]
    subprocess.run(command, check=True, cwd=folder)
    return next(folder.glob("*.orig.tar.*"))
