"""The kernels that are booted, and which tests run in each."""

from __future__ import annotations

from dataclasses import dataclass

from tests.kernels.archives import Archive

BULLSEYE = Archive(distribution="debian", suites=("bullseye",))
BOOKWORM = Archive(distribution="debian", suites=("bookworm",))
TRIXIE = Archive(distribution="debian", suites=("trixie",))
JAMMY = Archive(distribution="ubuntu", suites=("jammy-updates",))
BOOKWORM_ARM64 = Archive(distribution="debian", suites=("bookworm",), machine="arm64")
TRIXIE_ARM64 = Archive(distribution="debian", suites=("trixie",), machine="arm64")
NOBLE = Archive(distribution="ubuntu", suites=("noble-updates",))

# Column of the table -> what pytest runs. Each is a process of its own: one that hangs costs only itself.
SUITES: dict[str, tuple[str, ...]] = {
    "accounts": ("tests/integration/accounts",),
    "modes": ("tests/integration/test_loading.py", "tests/integration/test_probe_modes.py"),
    "counts": ("tests/integration/test_counts.py", "-k", "12"),
    "seconds": ("tests/integration/test_second_rows.py",),
    "sync_intervals": ("tests/integration/test_sync_intervals.py",),
    "host events": ("tests/integration/host_events",),
    "guest": ("tests/kernels/test_in_guest.py",),
    "refusals": ("tests/kernels/test_refusals.py",),  # the last: Yama and lockdown cannot be undone
}
CAPTURE = tuple(SUITES)
SUITES["arm64"] = ()  # no pytest there: see arm64_guest.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """One kernel: its package, boot parameters, and the suites that run in it."""

    name: str
    archive: Archive
    package: str
    machine: str = "x86_64"
    parameters: str = ""
    suites: tuple[str, ...] = CAPTURE


_PREEMPT_FULL = "preempt=full"
GUESTS = (
    Guest(name="5.10", archive=BULLSEYE, package="linux-image-amd64", suites=("refusals",)),
    Guest(name="5.15", archive=JAMMY, package="linux-image-generic"),
    Guest(name="6.1", archive=BOOKWORM, package="linux-image-amd64"),
    Guest(name="6.8", archive=NOBLE, package="linux-image-generic"),
    Guest(name="6.12", archive=TRIXIE, package="linux-image-amd64"),
    Guest(name="6.12-full", archive=TRIXIE, package="linux-image-amd64", parameters=_PREEMPT_FULL),
    Guest(name="arm64", archive=TRIXIE_ARM64, package="linux-image-arm64", machine="aarch64", suites=("arm64",)),
    Guest(name="7.0", archive=NOBLE, package="linux-image-generic-hwe-24.04"),
)
