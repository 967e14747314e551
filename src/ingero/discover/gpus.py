"""The GPUs of this host and their state, from NVIDIA's management library (NVML).

Source: NVML API reference (device queries, clocks event reasons).
"""

from __future__ import annotations

import contextlib
import importlib
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeVar

from ingero.discover.rooted import RootFiles
from ingero.events import THROTTLE_REASONS

_T = TypeVar("_T")
_NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt
_NO_INSTANCE = 0xFFFFFFFF  # of a process that is in no MIG slice
_NUMBER = re.compile(r"[0-9]{1,9}")
_LEADING = re.compile(r"\+?([0-9]{1,9})(?![0-9])|-(0{1,9})(?![0-9])")  # as strtoul() reads it
_CDI = re.compile(r"(?:[a-z0-9-]+\.)*nvidia\.com/(?:gpu|mig)=(.+)")
_OTHER_CDI = re.compile(r"[\w.-]+/[\w.-]+=.+")  # a device that is no GPU
_BUS_ID = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})\.0", re.IGNORECASE)
_REPLICA = re.compile(r"(.+?)(?:::\d+|(?<=^\d):\d+|(?<=^\d\d):\d+)")
_W_PER_MW = 0.001
_RECENT_US = 1_500_000  # a driver samples a process once a second, or a little more often

# A driver that has to wake eight GPUs takes seconds; the recording begins without one that takes longer.
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU. `index` is NVML's, in the order of PCI bus ids; `mig_uuids`: of its MIG slices.

    minor: the number of its device node, /dev/nvidiaN; None where the driver does not say.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    pci_bus_id: str
    max_sm_clock_mhz: int | None
    mig_uuids: tuple[str, ...] = ()
    minor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """The state of one GPU now. None: the GPU or its driver does not report it.

    busy_percent: share of the last sample period with any kernel running; it says nothing about how full the GPU was.
    slowdowns: why the clocks are lower than they could be; throttle_reasons: the same as NVML's bits.
    pcie_generation, pcie_lanes: of the link to it as it is now; an idle GPU lowers the first.
    processes: pid -> memory in bytes, None where the driver does not say how much. sm_percents: pid -> share of the
    last sample period with a kernel of that process running; without those that the driver says nothing of.
    slices: pid -> the MIG slice that it is in, of a GPU that is sliced and a driver that says so.
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
    slices: Mapping[int, str] = field(default_factory=dict)


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
        """One sample per GPU; empty without GPUs. A GPU that has fallen off the bus is left out."""
        nvml = self._nvml
        if nvml is None:
            return ()
        handles = ((gpu, _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, gpu.index)) for gpu in self.gpus)
        return tuple(_sample(nvml, gpu, handle) for gpu, handle in handles if handle is not None)


@contextlib.contextmanager
def open_nvml() -> Iterator[Nvml]:
    """Opens NVML for a `with` block. Without a driver it has no GPUs and says why."""
    # Loaded here: most commands never look at a GPU, and the module takes 30 ms.
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        yield Nvml(reason=f"NVML: {error}")
        return
    try:
        yield _open(nvml)
    finally:
        _ask(nvml, nvml.nvmlShutdown)


@lru_cache(maxsize=1)
def known_nvml() -> Nvml:
    """NVML facts of this host, asked once, without samples. If the driver hangs, there are no GPUs and a reason."""
    return ask_within(_ANSWER_S)


def ask_within(limit_s: float, opened: Callable[[], AbstractContextManager[Nvml]] = open_nvml) -> Nvml:
    """NVML facts, read in a thread that is abandoned if the driver does not answer in time."""
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
    """The GPUs of this host, asked for once; none if NVML does not work."""
    return known_nvml().gpus


def visible_uuids(
    gpus: Sequence[Gpu],
    environ: Mapping[str, str],
    *,
    is_containerized: bool = False,
    nodes: Collection[int] | None = None,
) -> tuple[str | None, ...]:
    """The UUID behind each CUDA device ordinal of a process that was started with this environment.

    None stands for an ordinal whose GPU is not known from outside, and for all where even their number cannot: a
    title has wiped the environment, or a container was given its GPUs without a word in it. With different models in
    one machine CUDA numbers them by speed unless CUDA_DEVICE_ORDER says PCI_BUS_ID. A MIG slice stands for the GPU
    that it is part of; where one of several GPUs is sliced, its slice must be named for the order to be known. A worker
    of Ray chooses among several GPUs in its own environment, which is not seen outside.
    is_containerized: then NVIDIA_VISIBLE_DEVICES decides which GPUs are in the container.
    nodes: minor numbers of the device nodes in the process's root, where they were looked for: no other GPU is there.
    Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit, "Environment
    variables" and "Support for Container Device Interface"; Slurm, "Generic Resource (GRES) Scheduling"; Ray,
    "Accelerator Support".
    """
    seen = _seen(gpus, environ, is_containerized=is_containerized, nodes=nodes)
    return (None,) if len(seen) > 1 and _is_chosen_inside(environ) else seen


def _seen(
    gpus: Sequence[Gpu], environ: Mapping[str, str], *, is_containerized: bool, nodes: Collection[int] | None
) -> tuple[str | None, ...]:
    present = _present(gpus, environ, is_containerized=is_containerized, nodes=nodes)
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if present is None or not environ:
        unknown = tuple(None for _ in (gpus if present is None else present)[:1])
        return unknown if asked is None else _chosen(asked, {}, gpus)
    if not is_containerized and (job := _of_slurm(environ)):
        if asked is not None:
            return _chosen(asked, _slurms(gpus, asked, job, environ), gpus)
        if _gpu_count(job, environ) not in (None, len(present)):  # the variable was unset: all of the job's or all
            return (None,)
    is_sliced = any(gpu.mig_uuids for gpu in present)
    is_order_known = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in present}) <= 1
    is_order_known = len(present) == 1 or (is_order_known and not is_sliced)
    order = {number: gpu.uuid if is_order_known else None for number, gpu in enumerate(present)}
    return tuple(order.values()) if asked is None else _chosen(asked, order, present, is_count_known=not is_sliced)


def _is_chosen_inside(environ: Mapping[str, str]) -> bool:
    """Whether Ray sets CUDA_VISIBLE_DEVICES in the process once it knows its task."""
    return bool(environ.get("RAY_RAYLET_PID")) and not environ.get("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES")


def device_nodes(pid: int, gpus: Sequence[Gpu], files: RootFiles | None = None) -> frozenset[int] | None:
    """Minor numbers of the GPUs with a device node in a process's root; None if none, or not known."""
    minors = [gpu.minor for gpu in gpus if gpu.minor is not None]
    try:
        nodes = (files or RootFiles()).devices(pid, [f"dev/nvidia{minor}" for minor in minors])
    except OSError:
        return None
    found = (minor for minor, node in zip(minors, nodes, strict=True) if node == (_NVIDIA_MAJOR, minor))
    return frozenset(found) or None


def _chosen(
    asked: str, order: Mapping[int, str | None], gpus: Sequence[Gpu], *, is_count_known: bool = False
) -> tuple[str | None, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES selects, by number or name; the first entry sets the kind, others end it.

    is_count_known: then another number hides itself and all behind it; else it is a device that is not known.
    """
    chosen: list[str | None] = []
    words = [word.strip() for word in asked.split(",")]
    for word in words:
        is_alike = _name_kind(word) == _name_kind(words[0])
        uuid = _named(word, order, gpus, is_count_known=is_count_known) if is_alike else ""
        if uuid == "":  # an unknown device hides itself and all behind it
            break
        chosen.append(uuid)
    known = [uuid for uuid, word in zip(chosen, words, strict=False) if uuid is not None and not _is_slice(word)]
    numbers = [number for word in words[: len(chosen)] if (number := _number(word)) is not None]
    is_twice = len(known) != len(set(known)) or len(numbers) != len(set(numbers))
    return () if is_twice else tuple(chosen)  # CUDA refuses a device that is named twice


def _named(word: str, order: Mapping[int, str | None], gpus: Sequence[Gpu], *, is_count_known: bool) -> str | None:
    """The UUID of one entry of CUDA_VISIBLE_DEVICES; empty if there is no such device."""
    number = _number(word)
    if number is not None:
        return order.get(number, "" if is_count_known else None)
    if _is_slice(word):
        return _owner(word, gpus)
    matches = [gpu.uuid for gpu in gpus if word.startswith("GPU-") and gpu.uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else ""


def _number(word: str) -> int | None:
    """The number at the start of an entry, all that CUDA reads of it (`0-3` is 0, `1gpu` 1)."""
    match = _LEADING.match(word)
    return int(match[1] or match[2]) if match else None


def _name_kind(word: str) -> str:
    return word[:4] if word.startswith(("GPU-", "MIG-")) else ""


def _owner(word: str, gpus: Sequence[Gpu]) -> str | None:
    """The UUID of the GPU that a MIG slice is part of."""
    return next((gpu.uuid for gpu in gpus if word in gpu.mig_uuids or word.startswith(f"MIG-{gpu.uuid}/")), None)


def _is_slice(word: str) -> bool:
    """A MIG slice: MIG-<UUID>, or before driver 470 MIG-GPU-<UUID>/<instance>/<compute instance>."""
    return word.startswith("MIG-")


def _of_slurm(environ: Mapping[str, str]) -> str | None:
    """The GPU numbers that Slurm assigned to a step or job; empty if it does not say; None outside a job."""
    if not (environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")):
        return None
    return environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or "-"


def _gpu_count(job: str, environ: Mapping[str, str]) -> int | None:
    """The number of GPUs of this node in a Slurm job."""
    mine = [one.strip() for one in job.split(",")]
    if all(_NUMBER.fullmatch(one) for one in mine):
        return len(mine)
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    return int(count) if _NUMBER.fullmatch(count) and int(count) else None


def _slurms(gpus: Sequence[Gpu], asked: str, job: str, environ: Mapping[str, str]) -> dict[int, str | None]:
    """The GPUs of CUDA_VISIBLE_DEVICES in a Slurm job, as far as they are certain.

    With ConstrainDevices they count the job's own GPUs from 0, without it those of the node; the variables do not say
    which is the case. A number too high for the job is the node's; the node's last one is the same by either count.
    Slurm's own numbers are those of device nodes.
    """
    numbers, mine = ([one.strip() for one in text.split(",")] for text in (asked, job))
    is_numbered_alike = all(gpu.minor in (None, gpu.index) for gpu in gpus) and not any(gpu.mig_uuids for gpu in gpus)
    if not is_numbered_alike or len({gpu.name for gpu in gpus}) > 1:
        return {}
    if not all(_NUMBER.fullmatch(one) for one in numbers):
        return {}
    by_number = {str(gpu.index): gpu.uuid for gpu in gpus}
    of_node = {int(one): by_number.get(one) for one in numbers}
    highest, count = max(of_node), _gpu_count(job, environ)
    if numbers == mine or highest + 1 == len(gpus) or (count is not None and highest >= count):
        return of_node
    if not all(_NUMBER.fullmatch(one) for one in mine):
        return {}
    of_job = {int(one): by_number.get(mine[int(one)]) for one in numbers}
    if not set(numbers) <= set(mine):
        return of_job
    return {one: uuid for one, uuid in of_job.items() if uuid == of_node[one]}


def _present(
    gpus: Sequence[Gpu], environ: Mapping[str, str], *, is_containerized: bool, nodes: Collection[int] | None
) -> list[Gpu] | None:
    """The GPUs that a process can reach; None if not known."""
    present = _in_container(gpus, environ.get("NVIDIA_VISIBLE_DEVICES")) if is_containerized else list(gpus)
    if nodes is not None and all(gpu.minor is not None for gpu in gpus):
        there = [gpu for gpu in gpus if gpu.minor in nodes]
        if present is None or len(there) < len(present):
            present = there
    if present is None and len(gpus) == 1:
        return list(gpus)  # which else
    return present


def _in_container(gpus: Sequence[Gpu], asked: str | None) -> list[Gpu] | None:
    """The GPUs that NVIDIA_VISIBLE_DEVICES puts into a container; None if another mechanism decides.

    Without the variable, with `void` or nothing in it, and with the folder of the device plugin's strategy
    `volume-mounts`, a container may have been given any device: by CDI, --device, --privileged or DRA. With a device
    that is not here the toolkit starts no container, so one that runs was not started by it.
    """
    words = [_device_word(word) for word in (asked or "").split(",") if not _is_no_gpu(word.strip())]
    if not words or "void" in words or any(word.startswith("/") for word in words):
        return None
    if "none" in words:
        return []
    if any(word.lower() == "all" for word in words):
        return list(gpus)
    found = [next((gpu.uuid for gpu in gpus if _is_meant(word, gpu)), None) for word in words]
    return None if None in found else [gpu for gpu in gpus if gpu.uuid in found]


def _is_no_gpu(word: str) -> bool:
    """Whether an entry names no GPU: empty (an extra comma), or another kind of CDI device."""
    return not word or (_OTHER_CDI.fullmatch(word) is not None and _CDI.fullmatch(word) is None)


def _is_meant(word: str, gpu: Gpu) -> bool:
    """Whether NVIDIA_VISIBLE_DEVICES names a GPU by UUID, number, PCI bus id or slice."""
    if _NUMBER.fullmatch(word):
        return int(word) == gpu.index
    if match := _BUS_ID.fullmatch(word):
        domain, bus, device = (int(one, 16) for one in match.groups())
        return gpu.pci_bus_id.lower() == f"{domain:08x}:{bus:02x}:{device:02x}.0"
    return word.lower() == gpu.uuid.lower() or _owner(word, [gpu]) is not None


def _device_word(word: str) -> str:
    """The bare name of a GPU in NVIDIA_VISIBLE_DEVICES or CDI form (`nvidia.com/gpu=2`, `GPU-...::3`, `0:1`)."""
    match = _CDI.fullmatch(word.strip())
    name = match[1] if match else word.strip()
    replica = _REPLICA.fullmatch(name)  # the device plugin's time slices of one GPU
    return replica[1] if replica else name


def _open(nvml: ModuleType) -> Nvml:
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
        minor=_ask(nvml, nvml.nvmlDeviceGetMinorNumber, handle),
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
    processes = _processes(nvml, handle)
    return GpuSample(
        uuid=gpu.uuid,
        busy_percent=busy.gpu if busy else None,
        memory_busy_percent=busy.memory if busy else None,
        memory_used_bytes=int(memory.used) if memory else None,
        sm_clock_mhz=_ask(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        slowdowns=None if reasons is None else slowdowns_of(reasons),
        power_w=None if power_mw is None else power_mw * _W_PER_MW,
        temperature_c=_ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        processes={process.pid: process.usedGpuMemory for process in processes},
        sm_percents=_sm_percents(nvml, handle, time.time_ns() // 1000 - _RECENT_US),
        memory_total_bytes=int(memory.total) if memory else None,
        throttle_reasons=reasons,
        pcie_generation=_ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_lanes=_ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        slices=_slices_of(processes) if gpu.mig_uuids else {},
    )


def slowdowns_of(throttle_reasons: int) -> tuple[str, ...]:
    """The names of slowdown reasons, without "GPU is idle"."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if throttle_reasons & bit)


def _throttle_reasons(nvml: ModuleType, handle: Any) -> int | None:
    bits = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:  # the name before driver 535
        bits = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return bits


def _processes(nvml: ModuleType, handle: Any) -> Sequence[Any]:
    # By its version: the plain name raises no NVMLError but a foreign one when the driver is older than the binding.
    return _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) or ()


def _slices_of(processes: Sequence[Any]) -> dict[int, str]:
    """GPU instance and compute instance of each process in a MIG slice."""
    return {
        process.pid: f"{process.gpuInstanceId}/{process.computeInstanceId}"
        for process in processes
        if process.gpuInstanceId not in (None, _NO_INSTANCE)
    }


def _sm_percents(nvml: ModuleType, handle: Any, since_us: int) -> dict[int, int]:
    """The newest utilization sample of each process since a unix time; MIG and some virtual GPUs have none."""
    found = _ask(nvml, nvml.nvmlDeviceGetProcessUtilization, handle, since_us) or ()
    newest = {one.pid: one for one in sorted(found, key=lambda one: one.timeStamp) if one.timeStamp >= since_us}
    return {pid: min(one.smUtil, 100) for pid, one in newest.items()}


def _ask(nvml: ModuleType, function: Callable[..., _T], *arguments: Any) -> _T | None:
    """Runs one NVML query; None if this GPU, driver or container does not answer it."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
