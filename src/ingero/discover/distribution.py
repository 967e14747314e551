"""The Linux distribution, and its names of the packages that users may need.

A package that it does not have is never named: the failing command would tell the user nothing.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_FILES = (Path("/etc/os-release"), Path("/usr/lib/os-release"))
_MAX_BYTES = 64 << 10
_MIN_LIBBPF = "1.0"
_OWN_LIBBPF = "install a wheel of ingero for manylinux, which brings its own, or name one by INGERO_LIBBPF"
# The first release with libbpf 1.0; a release without a number (testing, rolling) is newer than all.
_LIBBPF_SINCE = {"debian": (12,), "ubuntu": (22, 10), "fedora": (38,)}


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution by os-release; empty without such a file. version: empty for a rolling release."""

    id: str = ""
    like: tuple[str, ...] = ()
    name: str = ""
    version: tuple[int, ...] = ()

    def is_of(self, *families: str) -> bool:
        """Whether the distribution is one of these, or derived from one."""
        return any(one in families for one in (self.id, *self.like))

    @property
    def libbpf_fix(self) -> str:
        """How to get libbpf 1.0 or newer."""
        since = _LIBBPF_SINCE.get(self.id)
        if since is not None and self.version and self.version < since:
            return f"{self.name or self.id} has no libbpf {_MIN_LIBBPF}: {_OWN_LIBBPF}"
        for families, line in (
            (("debian", "ubuntu"), "sudo apt-get install libbpf1"),
            (("fedora", "rhel", "centos"), "sudo dnf install libbpf"),
            (("suse", "opensuse"), "sudo zypper install libbpf1"),
            (("arch",), "sudo pacman -S libbpf"),
        ):
            if self.is_of(*families) and self.id in _LIBBPF_SINCE:
                return line
            if self.is_of(*families):
                return f"{line} (it must be {_MIN_LIBBPF} or newer), or {_OWN_LIBBPF}"
        return _OWN_LIBBPF

    @property
    def kernel_fix(self) -> str:
        """How to get a newer kernel."""
        for families, line in (
            (("ubuntu",), "sudo apt-get install linux-image-generic, and restart"),
            (("debian",), "sudo apt-get install linux-image-$(dpkg --print-architecture), and restart"),
            (("fedora", "rhel", "centos"), "sudo dnf upgrade kernel, and restart"),
            (("suse", "opensuse"), "sudo zypper update kernel-default, and restart"),
            (("arch",), "sudo pacman -Syu linux, and restart"),
        ):
            if self.is_of(*families):
                return f"upgrade the kernel: {line}"
        return "upgrade the kernel to your distribution's current one, and restart"

    def driver_fix(self, least: int) -> str:
        """How to get NVIDIA's driver. least: the oldest sufficient major version."""
        if self.id == "ubuntu":
            return f"sudo apt install nvidia-driver-{least}, or a newer one; in a container: docker run --gpus all"
        return (
            f"install NVIDIA's driver {least} or newer, from your distribution's packages that are not free or from "
            "NVIDIA's own; in a container: docker run --gpus all"
        )


def read_distribution(text: str) -> Distribution:
    """Reads the text of an os-release file; malformed lines are skipped."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, is_given, value = line.strip().partition("=")
        if is_given and re.fullmatch(r"[A-Z_]+", key):
            try:
                found[key] = " ".join(shlex.split(value))
            except ValueError:  # a quote that does not end
                continue
    numbers = re.match(r"\d{1,6}(?:\.\d{1,6})*", found.get("VERSION_ID", ""))
    return Distribution(
        id=found.get("ID", "").lower(),
        like=tuple(found.get("ID_LIKE", "").lower().split()),
        name=found.get("PRETTY_NAME", "")[:80],
        version=tuple(map(int, numbers[0].split("."))) if numbers else (),
    )


@lru_cache(maxsize=1)
def this_distribution() -> Distribution:
    """The distribution of this host, or of the container that ingero is in."""
    for path in _FILES:
        try:
            with path.open("rb") as file:
                return read_distribution(file.read(_MAX_BYTES).decode(errors="replace"))
        except OSError:
            continue
    return Distribution()
