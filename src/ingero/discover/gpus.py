"""The GPUs of this machine and what they are doing, as NVIDIA's management library (NVML) tells it.

Source: NVML API reference (device queries, clocks event reasons).
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeVar

from ingero.events import THROTTLE_REASONS

_T = TypeVar("_T")
_W_PER_MW = 0.001
_RECENT_US = 1_500_000  # a driver samples a process once a second, or a little more often

# A driver that has to wake eight GPUs takes seconds; the recording begins without one that takes longer.
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. `index` is NVML's, in the order of PCI bus ids; `mig_uuids` are those of its MIG slices."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    pci_bus_id: str
    max_sm_clock_mhz: int | None
    mig_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """What one GPU is doing now. None: the GPU or its driver does not tell.

    busy_percent: share of the last sample period with any kernel running; it says nothing about how full the GPU was.
    slowdowns: why the clocks are lower than they could be; throttle_reasons: the same as NVML's bits.
    pcie_generation, pcie_lanes: of the link to it as it is now; an idle GPU lowers the first.
    processes: pid -> memory in bytes, None where the driver does not say how much. sm_percents: pid -> share of the
    last sample period with a kernel of that process running; without those that the driver says nothing of.
    """

    uuid: str
    busy_percent: int | None
    memory_busy_percent: int | None
    memory_used_bytes: int | None
    sm_clock_mhz: int | None
    slowdowns: tuple[str, ...] | None
    power_w: float | None
    temperature_c: int | None
    processes: Mapping[int, int | None]
    sm_percents: Mapping[int, int] = field(default_factory=dict)
    memory_total_bytes: int | None = None
    throttle_reasons: int | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvml:
    """NVML, opened by `open_nvml`.

    reason: why there are no GPUs; empty if there are.
    driver_version: such as 550.54.15; cuda_version: the newest CUDA the driver serves, (major, minor).
    """

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    cuda_version: tuple[int, int] | None = None
    reason: str = ""
    _nvml: ModuleType | None = None

    def sample(self) -> tuple[GpuSample, ...]:
        """One sample per GPU; empty where there is none. A GPU that has fallen off the bus is left out."""
        nvml = self._nvml
        if nvml is None:
            return ()
        handles = ((gpu, _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, gpu.index)) for gpu in self.gpus)
        return tuple(_sample(nvml, gpu, handle) for gpu, handle in handles if handle is not None)


@contextlib.contextmanager
def open_nvml() -> Iterator[Nvml]:
    """NVML for the time of a `with` block. Without a driver it has no GPUs and says why."""
    # Loaded here: most commands never look at a GPU, and the module takes 30 ms.
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        yield Nvml(reason=f"NVML: {error}")
        return
    try:
        yield _opened(nvml)
    finally:
        _ask(nvml, nvml.nvmlShutdown)


@lru_cache(maxsize=1)
def known_nvml() -> Nvml:
    """What NVML says of this machine, asked once, without samples. A driver that hangs is the reason for no GPUs."""
    return ask_within(_ANSWER_S)


def ask_within(limit_s: float, opened: Callable[[], AbstractContextManager[Nvml]] = open_nvml) -> Nvml:
    """NVML's facts, from a thread that is left behind if the driver does not answer in time."""
    answers: list[Nvml] = []

    def ask() -> None:
        try:
            with opened() as nvml:
                answers.append(replace(nvml, _nvml=None))
        except Exception as error:  # whatever the binding raises costs the GPU's facts only, and is their reason
            answers.append(Nvml(reason=f"NVML: {error}"))

    thread = threading.Thread(target=ask, name="ingero-nvml-facts", daemon=True)
    thread.start()
    thread.join(limit_s)
    return answers[0] if answers else Nvml(reason=f"NVML did not answer within {limit_s:.0f} s")


def present_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, asked for once; none where NVML does not work."""
    return known_nvml().gpus


def visible_uuids(
    gpus: Sequence[Gpu], environ: Mapping[str, str], *, is_containerized: bool = False
) -> tuple[str | None, ...]:
    """The UUID behind each CUDA device ordinal of a process with this environment.

    None stands for an ordinal whose GPU cannot be told from outside: with different models in one machine CUDA numbers
    them by speed unless CUDA_DEVICE_ORDER says PCI_BUS_ID. A MIG slice stands for the GPU that it is part of; where a
    GPU is sliced, its slice must be named for the order to be known.
    is_containerized: then NVIDIA_VISIBLE_DEVICES decides which GPUs are in the container.
    Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit, "Environment variables".
    """
    present = _in_container(gpus, environ.get("NVIDIA_VISIBLE_DEVICES")) if is_containerized else list(gpus)
    is_order_known = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in present}) <= 1
    is_order_known = is_order_known and not any(gpu.mig_uuids for gpu in present)
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return tuple(gpu.uuid if is_order_known else None for gpu in present)
    chosen: list[str | None] = []
    for word in asked.split(","):
        uuid = _named(word.strip(), present, is_order_known)
        if uuid == "":  # an unknown device hides itself and all behind it
            break
        chosen.append(uuid)
    words = [word.strip() for word in asked.split(",")][: len(chosen)]
    known = [uuid for uuid, word in zip(chosen, words, strict=True) if uuid is not None and not _is_slice(word)]
    return () if len(known) != len(set(known)) else tuple(chosen)  # CUDA refuses a device that is named twice


def _named(word: str, present: Sequence[Gpu], is_order_known: bool) -> str | None:
    """The UUID of one entry of CUDA_VISIBLE_DEVICES; empty if there is no such device."""
    if word.isascii() and word.isdigit():
        if int(word) >= len(present):
            return ""
        return present[int(word)].uuid if is_order_known else None
    if _is_slice(word):
        return next((gpu.uuid for gpu in present if word in gpu.mig_uuids or word.startswith(f"MIG-{gpu.uuid}/")), None)
    matches = [gpu.uuid for gpu in present if word.startswith("GPU-") and gpu.uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else ""


def _is_slice(word: str) -> bool:
    """A MIG slice: MIG-<UUID>, or before driver 470 MIG-GPU-<UUID>/<instance>/<compute instance>."""
    return word.startswith("MIG-")


def _in_container(gpus: Sequence[Gpu], asked: str | None) -> list[Gpu]:
    if asked is None or asked in ("all", ""):
        return list(gpus)
    words = {word.strip() for word in asked.split(",")}
    return [gpu for gpu in gpus if words & {gpu.uuid, str(gpu.index), gpu.pci_bus_id}]


def _opened(nvml: ModuleType) -> Nvml:
    count = _ask(nvml, nvml.nvmlDeviceGetCount) or 0
    gpus = tuple(gpu for gpu in (_gpu(nvml, index) for index in range(count)) if gpu is not None)
    cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion)
    return Nvml(
        gpus=gpus,
        driver_version=_text(_ask(nvml, nvml.nvmlSystemGetDriverVersion)),
        cuda_version=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        reason="" if gpus else "NVML: the driver shows no GPU",
        _nvml=nvml,
    )


def _gpu(nvml: ModuleType, index: int) -> Gpu | None:
    handle = _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    uuid = _text(_ask(nvml, nvml.nvmlDeviceGetUUID, handle)) if handle is not None else None
    if uuid is None:
        return None
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _ask(nvml, nvml.nvmlDeviceGetPciInfo_v3, handle)
    return Gpu(
        index=index,
        uuid=uuid,
        name=_text(_ask(nvml, nvml.nvmlDeviceGetName, handle)) or "unknown GPU",
        memory_bytes=int(memory.total) if memory else 0,
        pci_bus_id=_text(pci.busId) or "" if pci else "",
        max_sm_clock_mhz=_ask(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        mig_uuids=_slices(nvml, handle),
    )


def _slices(nvml: ModuleType, handle: Any) -> tuple[str, ...]:
    count = _ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    slices = (_ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index) for index in range(count))
    uuids = (_text(_ask(nvml, nvml.nvmlDeviceGetUUID, one)) for one in slices if one is not None)
    return tuple(uuid for uuid in uuids if uuid is not None)


def _sample(nvml: ModuleType, gpu: Gpu, handle: Any) -> GpuSample:
    busy = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    reasons = _throttle_reasons(nvml, handle)
    power_mw = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    return GpuSample(
        uuid=gpu.uuid,
        busy_percent=busy.gpu if busy else None,
        memory_busy_percent=busy.memory if busy else None,
        memory_used_bytes=int(memory.used) if memory else None,
        sm_clock_mhz=_ask(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        slowdowns=None if reasons is None else slowdowns_of(reasons),
        power_w=None if power_mw is None else power_mw * _W_PER_MW,
        temperature_c=_ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        processes=_processes(nvml, handle),
        sm_percents=_sm_percents(nvml, handle, time.time_ns() // 1000 - _RECENT_US),
        memory_total_bytes=int(memory.total) if memory else None,
        throttle_reasons=reasons,
        pcie_generation=_ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_lanes=_ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
    )


def slowdowns_of(throttle_reasons: int) -> tuple[str, ...]:
    """Their names, without that the GPU is idle."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if throttle_reasons & bit)


def _throttle_reasons(nvml: ModuleType, handle: Any) -> int | None:
    bits = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:  # the name before driver 535
        bits = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return bits


def _processes(nvml: ModuleType, handle: Any) -> dict[int, int | None]:
    # By its version: the plain name raises no NVMLError but a foreign one when the driver is older than the binding.
    found = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) or ()
    return {process.pid: process.usedGpuMemory for process in found}


def _sm_percents(nvml: ModuleType, handle: Any, since_us: int) -> dict[int, int]:
    """The newest sample of each process since a Unix time; a sliced GPU and some virtual ones have none."""
    found = _ask(nvml, nvml.nvmlDeviceGetProcessUtilization, handle, since_us) or ()
    newest = {one.pid: one for one in sorted(found, key=lambda one: one.timeStamp) if one.timeStamp >= since_us}
    return {pid: min(one.smUtil, 100) for pid, one in newest.items()}


def _ask(nvml: ModuleType, function: Callable[..., _T], *arguments: Any) -> _T | None:
    """One query; None where this GPU, driver or container does not answer it."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
