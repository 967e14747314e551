"""Finds an AppArmor profile or SELinux domain that may restrict this process beyond its capabilities.

Both refuse with the errors of missing capabilities (EPERM, EACCES), and say so only in the kernel's log.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingero.foreign_text import decoded, visible

PROC, SYS = Path("/proc"), Path("/sys")
_MAX_BYTES = 256
# They forbid nothing that matters here (selinux-policy: unconfined, and the domain of privileged containers).
_FREE_DOMAINS = frozenset({"unconfined_t", "unconfined_service_t", "spc_t", "kernel_t", "init_t", "initrc_t"})


@dataclass(frozen=True, slots=True)
class Confinement:
    """A confinement of this process. text: whose rules. fix: how to run without, and where denials are logged."""

    text: str
    fix: str


def confinement(proc: Path = PROC, sys: Path = SYS) -> Confinement | None:
    """The confinement of this process; None if there is none, or it only logs."""
    profile = _read(proc / "self/attr/apparmor/current")
    label = _read(proc / "self/attr/current")
    if not profile and label.count(":") < 2:
        profile = label  # of kernels before 5.8, or where AppArmor is the only one
    if profile.endswith(" (enforce)"):
        return Confinement(
            f"AppArmor profile {profile.removesuffix(' (enforce)')}",
            "docker run --security-opt apparmor=unconfined, or securityContext: {appArmorProfile: {type: Unconfined}} "
            "in the pod; denials: sudo dmesg | grep -i apparmor=.DENIED",
        )
    domain = label.split(":")[2] if label.count(":") >= 2 else ""
    if domain and domain not in _FREE_DOMAINS and _read(sys / "fs/selinux/enforce") != "0":
        return Confinement(
            f"SELinux domain {domain}",
            "docker run --security-opt label=disable, or securityContext: {seLinuxOptions: {type: spc_t}} in the pod; "
            "denials: sudo ausearch -m avc -ts recent",
        )
    return None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return visible(decoded(file.read(_MAX_BYTES).strip(b"\0\n ")))
    except OSError:
        return ""
