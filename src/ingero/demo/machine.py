"""How this host can run a demo: on its GPU, on a simulated one with real probes, or from a script."""

from __future__ import annotations

import enum
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ingero.attach.objects import ObjectMissingError, object_path
from ingero.demo import prebuilt
from ingero.demo.c_compiler import c_compiler
from ingero.demo.gpusim.build import why_not_here
from ingero.demo.workloads.gpu_train import FRAMEWORKS
from ingero.discover.gpus import Nvml, known_nvml
from ingero.discover.kernel import read_kernel
from ingero.discover.readiness import what_blocks
from ingero.errors import IngeroError
from ingero.program import command

_ASK = "import importlib.util as u, sys; sys.exit(not any(u.find_spec(name) for name in sys.argv[1:]))"
_ANSWER_S = 30


class Mode(enum.Enum):
    """What a demo runs on."""

    GPU = "gpu"
    SIMULATED = "simulated"
    SCRIPTED = "scripted"


class CannotPlayError(IngeroError):
    """The machine lacks what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The chosen mode, and what the header says of it. python: what runs the workload on a real GPU."""

    mode: Mode
    gpu: str
    driver: str
    probes: str
    python: Path = Path(sys.executable)


def chosen_machine(*, wants_gpu: bool, without_gpu: bool) -> Machine:
    """The best that this machine can do, or what was asked for.

    Raises:
        CannotPlayError: a GPU was asked for, and it cannot be used.
    """
    if without_gpu:
        return _scripted("--no-gpu")
    if wants_gpu:
        return _on_gpu(known_nvml())
    missing = why_no_probes()
    if missing:
        return _scripted(missing)
    try:
        return _on_gpu(known_nvml())
    except CannotPlayError:
        missing = why_not_here()
        return _scripted(missing) if missing else _simulated()


def why_no_probes() -> str:
    """Why no real probes can be attached; "" where they can."""
    if os.geteuid() != 0:
        return "without root"
    try:
        object_path("api_calls")
    except ObjectMissingError as error:
        return str(error)
    blocked = what_blocks(read_kernel())
    return blocked.reason if blocked else ""


def _on_gpu(nvml: Nvml) -> Machine:
    if not nvml.gpus:
        raise CannotPlayError(
            f"there is no GPU here: {nvml.reason or 'the driver knows none'}",
            hint=f"{command('demo')}, or: {command('check')}",
        )
    missing = why_no_probes()
    if missing:
        raise CannotPlayError(f"no probes can be attached: {missing}", hint=command("demo", "--gpu", as_root=True))
    python = python_with_framework()
    if python is None:
        raise CannotPlayError(
            f"no Python here has {' or '.join(FRAMEWORKS)}",
            hint="pip install torch, then run the demo in that environment",
        )
    gpu = nvml.gpus[0]
    return Machine(
        mode=Mode.GPU, gpu=gpu.name, driver=nvml.driver_version or "version unknown", probes="real", python=python
    )


def _simulated() -> Machine:
    made = f"from {prebuilt.PACKAGE}" if prebuilt.folder() else f"built with {c_compiler()}"
    return Machine(mode=Mode.SIMULATED, gpu=f"simulated, {made}", driver="simulated", probes="real")


def _scripted(reason: str) -> Machine:
    probes = f"none ({reason}): a script writes the events, the engine is the same"
    return Machine(mode=Mode.SCRIPTED, gpu="none", driver="none", probes=probes)


def python_with_framework(candidates: Callable[[], Iterator[str | None]] | None = None) -> Path | None:
    """The first Python here that can import a framework: ingero's own, the active environment's, the one on PATH."""
    for path in (candidates or _pythons)():
        if path is None or not Path(path).exists():
            continue
        done = subprocess.run([path, "-c", _ASK, *FRAMEWORKS], timeout=_ANSWER_S, check=False, capture_output=True)
        if done.returncode == 0:
            return Path(path)
    return None


def _pythons() -> Iterator[str | None]:
    yield sys.executable
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if folder := os.environ.get(variable):
            yield str(Path(folder) / "bin" / "python")
    yield shutil.which("python3")
