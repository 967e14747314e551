"""Facts of this host for the record of a session."""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.gpus import Nvml
from ingero.discover.library_files import LibraryFile
from ingero.discover.processes import PROC
from ingero.ops import Library

_KIB = 1024
_MACHINE_ID = re.compile(r"[0-9a-fA-F]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Facts of a host. None: not known.

    cpu_cores: logical CPUs that are online.
    gpu_model: the names of all GPUs, each once, joined by a comma.
    cuda_version: of the newest runtime library in use, such as 12.9; else the newest that the driver serves.
    """

    hostname: str
    os_name: str
    kernel: str
    architecture: str
    cpu_model: str
    cpu_cores: int
    memory_bytes: int
    python_version: str
    gpu_model: str | None
    driver_version: str | None
    cuda_version: str | None
    load_avg: tuple[float, float, float]


def read_host(
    *, nvml: Nvml | None = None, libraries: Iterable[LibraryFile] = (), proc: Path = PROC, etc: Path = Path("/etc")
) -> HostFacts:
    """Reads the facts of this host; GPUs and CUDA from what the caller has found."""
    system = os.uname()
    nvml = nvml or Nvml()
    return HostFacts(
        hostname=system.nodename,
        os_name=os_name(etc / "os-release"),
        kernel=system.release,
        architecture=system.machine,
        cpu_model=_cpu_model(_text(proc / "cpuinfo")) or system.machine,
        cpu_cores=os.cpu_count() or 1,
        memory_bytes=_memory_bytes(_text(proc / "meminfo")),
        python_version=platform.python_version(),
        gpu_model=", ".join(dict.fromkeys(gpu.name for gpu in nvml.gpus)) or None,
        driver_version=nvml.driver_version,
        cuda_version=_cuda_version(libraries, nvml),
        load_avg=os.getloadavg(),
    )


def machine_id(*, proc: Path = PROC, etc: Path = Path("/etc")) -> str:
    """An id of this installation, stable across reboots; "" if it has none.

    The first process's file comes first: that of a container is the image's. machine-id(5) is confidential, so this is
    a keyed hash of it, 32 hexadecimal digits, as sd_id128_get_machine_app_specific(3) would give away.
    """
    for path in (proc / "1/root/etc/machine-id", etc / "machine-id"):
        if _MACHINE_ID.fullmatch(found := _text(path).strip()):
            return hmac.new(found.lower().encode(), b"ingero", hashlib.sha256).hexdigest()[:32]
    return ""


def os_name(os_release: Path) -> str:
    """The pretty name of an os-release file; `Linux` where it has none."""
    match = re.search(r'^PRETTY_NAME=["\']?(.*?)["\']?$', _text(os_release), re.MULTILINE)
    return match[1] if match else "Linux"


def library_version(file: LibraryFile) -> tuple[int, ...]:
    """The version in a library's file name or soname: (12, 9, 79) of libcudart.so.12.9.79; empty if it has none."""
    names = (re.search(r"\.so\.([\d.]+)\Z", name) for name in (file.path.name, file.soname))
    versions = [tuple(int(part) for part in match[1].split(".")) for match in names if match]
    return max(versions, key=len, default=())


def _cuda_version(libraries: Iterable[LibraryFile], nvml: Nvml) -> str | None:
    runtimes = [library_version(file) for file in libraries if file.library is Library.CUDART]
    newest = max(runtimes, default=()) or nvml.cuda_version
    return ".".join(str(part) for part in newest[:2]) if newest else None


def _cpu_model(cpuinfo: str) -> str | None:
    match = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else None


def _memory_bytes(meminfo: str) -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(match[1]) * _KIB if match else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
