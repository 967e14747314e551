"""NVML as the real Python binding sees it."""

# ruff: noqa: F401, F811 (pytest finds fixtures by the names of imports and of arguments)

import json
import subprocess
import sys
import textwrap
from typing import Any

from ingero.demo.gpusim.knobs import Knobs
from tests.unit.gpusim_fixtures import Rig, gpusim_lib, rig, wait_until

MS = 1_000_000


def ask(rig: Rig, program: str, **options: Any) -> Any:
    source = "import json, pynvml\npynvml.nvmlInit()\ndevice = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
    done = subprocess.run(
        [sys.executable, "-c", source + textwrap.dedent(program)],
        env=rig.environment(**options),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_device_has_the_name_and_uuid_that_cuda_reports(rig: Rig) -> None:
    name, uuid, found = ask(
        rig,
        """
        uuid = pynvml.nvmlDeviceGetUUID(device)
        same = pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        print(json.dumps([pynvml.nvmlDeviceGetName(device), uuid, same]))
        """,
    )
    cuda_name, cuda_uuid = rig.run(
        """
        name, uuid = c.create_string_buffer(64), c.create_string_buffer(16)
        check(malloc(4096)[0])
        check(driver().cuDeviceGetName(name, 64, 0))
        check(driver().cuDeviceGetUuid_v2(uuid, 0))
        print(json.dumps([name.value.decode(), uuid.raw.hex()]))
        """
    )
    assert (name, uuid.removeprefix("GPU-").replace("-", ""), found) == (cuda_name, cuda_uuid, 0)


def test_memory_and_processes_are_those_that_run(rig: Rig) -> None:
    child = rig.start("check(malloc(256 << 20)[0]); sys.stdin.readline()")
    wait_until(lambda: rig.trace.exists() and rig.truth().count("cudaMalloc") == 1, child)
    used, processes = ask(
        rig,
        """
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        print(json.dumps([memory.used, [[process.pid, process.usedGpuMemory] for process in running]]))
        """,
    )
    assert (used, processes) == (256 << 20, [[child.pid, 256 << 20]])
    child.communicate("\n")
    assert ask(rig, "print(len(pynvml.nvmlDeviceGetComputeRunningProcesses(device)))") == 0


def test_utilisation_is_the_busy_share_of_the_last_second(rig: Rig) -> None:
    child = rig.start("launch(kernel(10**10)); sys.stdin.readline()")
    wait_until(lambda: rig.trace.exists() and rig.truth().count("cudaLaunchKernel") == 1, child)
    rates = """
        import time
        def rate():
            return pynvml.nvmlDeviceGetUtilizationRates(device).gpu
        first = rate()
        while rate() < 95:
            time.sleep(0.01)
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(device)
        print(json.dumps([rate() >= first, reasons & 1]))
        """
    assert ask(rig, rates) == [True, 0]
    child.communicate("\n")


def test_processes_that_share_the_device_have_their_slices_of_it(rig: Rig) -> None:
    program = """
        import threading
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
        work = kernel(50 * 10**6)
        while not ended.is_set():
            launch(work)
            check(runtime.cudaDeviceSynchronize())
        """
    children = [rig.start(program) for _ in range(2)]
    found = ask(
        rig,
        """
        import time
        deadline = time.monotonic() + 20
        shares = {}
        while (len(shares) < 2 or sum(shares.values()) < 75) and time.monotonic() < deadline:
            time.sleep(0.05)
            last = time.time_ns() // 1000 - 10**6
            try:
                found = pynvml.nvmlDeviceGetProcessUtilization(device, last)
            except pynvml.NVMLError_NotFound:
                found = []
            shares = {one.pid: one.smUtil for one in found}
        print(json.dumps(sorted(shares.items())))
        """,
    )
    assert [pid for pid, _ in found] == sorted(child.pid for child in children)
    assert all(25 <= share <= 75 for _, share in found), found
    assert sum(share for _, share in found) <= 110, found
    for child in children:
        child.communicate("\n")


def test_an_unused_device_is_idle(rig: Rig) -> None:
    assert ask(
        rig,
        """
        rates = pynvml.nvmlDeviceGetUtilizationRates(device)
        print(json.dumps([rates.gpu, rates.memory, pynvml.nvmlDeviceGetCurrentClocksEventReasons(device)]))
        """,
    ) == [0, 0, 1]


def test_clocks_and_throttle_reasons_are_the_knobs(rig: Rig) -> None:
    with Knobs(rig.ctl) as knobs:
        knobs.sm_clock_mhz = 900
        knobs.throttle_reasons = 0x20
        knobs.temperature_c = 91
        knobs.power_w = 420
    assert ask(
        rig,
        """
        print(json.dumps([
            pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM),
            pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_SM),
            pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device) & ~1,
            pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU),
            pynvml.nvmlDeviceGetPowerUsage(device),
            pynvml.nvmlDeviceGetMinorNumber(device),
        ]))
        """,
    ) == [900, 1980, 0x20, 91, 420_000, 0]


def test_several_devices_are_counted_and_told_apart(rig: Rig) -> None:
    count, uuids, buses = ask(
        rig,
        """
        devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        uuids = {pynvml.nvmlDeviceGetUUID(device) for device in devices}
        buses = [pynvml.nvmlDeviceGetPciInfo(device).bus for device in devices]
        print(json.dumps([len(devices), len(uuids), buses]))
        """,
        devices=3,
    )
    assert (count, uuids, buses) == (3, 3, [1, 2, 3])
