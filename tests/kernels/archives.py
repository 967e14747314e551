"""Downloads packages of other Debian and Ubuntu releases by apt, without touching this machine's own sources.

Where the archives are, debootstrap knows. Everything is checked against the distributions' signatures, and Ubuntu's
keyring, which Debian does not carry, against the checksum below.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "kernels"
_DEBOOTSTRAP, _UBUNTU_SCRIPT = Path("/usr/sbin/debootstrap"), Path("/usr/share/debootstrap/scripts/gutsy")
_UBUNTU_KEYRING = "ubuntu-keyring=2021.03.26"
_UBUNTU_KEYRING_SHA256 = "0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """One release of a distribution, for one machine type (in Debian's words)."""

    distribution: str
    suites: tuple[str, ...]
    machine: str = "amd64"

    def update(self) -> None:
        """Fetches the package lists, unless they are there."""
        if not self._stamp.exists():
            self._write_sources()
            self._apt("apt-get", "update", "-qq")
            self._stamp.touch()

    def depends(self, package: str, pattern: str) -> list[str]:
        """The packages that a package depends on and whose names match."""
        text = self._apt("apt-cache", "depends", package)
        return re.findall(rf"^ +\|?Depends: ({pattern})$", text, re.MULTILINE)

    def download(self, package: str, folder: Path) -> Path:
        """One package file."""
        folder.mkdir(parents=True, exist_ok=True)
        name = package.partition("=")[0]
        if not (found := sorted(folder.glob(f"{name}_*.deb"))):
            print(f"kernels: downloading {package} ({self.distribution} {self.suites[0]} {self.machine})", flush=True)
            self._apt("apt-get", "download", package, cwd=folder)
            found = sorted(folder.glob(f"{name}_*.deb"))
        return found[-1]

    def download_all(self, packages: Iterable[str]) -> list[Path]:
        """Package files and all that they depend on."""
        names = list(packages)
        print(f"kernels: downloading {' '.join(names)} and what they need ({self.machine})", flush=True)
        self._apt("apt-get", "install", "-qq", "-y", "--download-only", "--no-install-recommends", *names)
        return sorted((self._folder / "cache" / "archives").glob("*.deb"))

    @property
    def _folder(self) -> Path:
        return CACHE / "apt" / f"{self.distribution}-{self.suites[0]}-{self.machine}"

    @property
    def _stamp(self) -> Path:
        return self._folder / "updated"

    def _write_sources(self, keyring: Path | None = None) -> None:
        for part in ("lists/partial", "cache/archives/partial"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        (self._folder / "status").touch()
        signed = f"signed-by={keyring or _keyring(self.distribution)}" if keyring != _UNSIGNED else "trusted=yes"
        lines = (f"deb [{signed}] {_mirror(self.distribution)} {suite} main\n" for suite in self.suites)
        (self._folder / "sources.list").write_text("".join(lines))

    def _apt(self, *command: str, cwd: Path | None = None) -> str:
        options = {
            "Dir::Etc::sourcelist": self._folder / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self._folder / "lists",
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": self._folder / "cache",
            "APT::Architecture": self.machine,
            "APT::Architectures": self.machine,
            "APT::Sandbox::User": "root",
            "Debug::NoLocking": "true",
        }
        arguments = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        return run([command[0], *arguments, *command[1:]], cwd=cwd)


def run(command: Sequence[object], cwd: Path | None = None) -> str:
    """Runs a command to its end; what it printed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"kernels: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def unpack(package: Path, folder: Path) -> None:
    """Extracts a package without installing it."""
    folder.mkdir(parents=True, exist_ok=True)
    run(["dpkg", "-x", package, folder])


def _mirror(distribution: str) -> str:
    if distribution == "ubuntu":
        mirrors = re.findall(r"default_mirror (\S+)", _UBUNTU_SCRIPT.read_text(encoding="utf-8"))
        return next(mirror for mirror in mirrors if "old-releases" not in mirror)
    match = re.search(r'^DEF_MIRROR="(.+)"', _DEBOOTSTRAP.read_text(encoding="utf-8"), re.MULTILINE)
    assert match, "debootstrap names no mirror"
    return match[1]


def _keyring(distribution: str) -> Path:
    installed = Path(f"/usr/share/keyrings/{distribution}-archive-keyring.gpg")
    if installed.exists() or distribution != "ubuntu":
        return installed
    folder = CACHE / "ubuntu-keyring"
    unpacked = folder / "usr/share/keyrings/ubuntu-archive-keyring.gpg"
    if not unpacked.exists():
        source = Archive(distribution="ubuntu", suites=("jammy",))
        source._write_sources(_UNSIGNED)
        source._apt("apt-get", "update", "-qq")
        package = source.download(_UBUNTU_KEYRING, folder)
        if hashlib.sha256(package.read_bytes()).hexdigest() != _UBUNTU_KEYRING_SHA256:
            raise SystemExit(f"kernels: {package} is not the keyring that is known here")
        unpack(package, folder)
    return unpacked


_UNSIGNED = Path("unsigned")
