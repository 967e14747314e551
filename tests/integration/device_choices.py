"""A program whose threads choose their device in every way there is; prints {scenario: thread id} as JSON.

Arguments: a file that must exist before the threads start, if any; before that the first thread chooses device 2.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path

runtime = ctypes.CDLL("libcudart.so.12")
driver = ctypes.CDLL("libcuda.so.1")
for name in ("cuCtxSetCurrent", "cuCtxPushCurrent_v2", "cuCtxDestroy_v2"):
    getattr(driver, name).argtypes = (c_void_p,)
tids: dict[str, int] = {}
made: dict[str, int] = {}
SIZE = 4096


def by_runtime(times: int = 1) -> None:
    """A traced runtime call, whose size says which it is."""
    assert runtime.cudaMalloc(byref(c_void_p()), c_size_t(SIZE * times)) == 0


def by_driver(times: int = 1) -> int:
    """The same of the driver; its status."""
    return int(driver.cuMemAlloc_v2(byref(c_void_p()), c_size_t(SIZE * times)))


def retained(device: int) -> int:
    """The handle of a device's primary context."""
    context = c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(byref(context), device) == 0
    return context.value or 0


def nothing() -> None:
    by_runtime()


def set_device() -> None:
    assert runtime.cudaSetDevice(2) == 0
    by_runtime()
    current = c_void_p()
    assert driver.cuCtxGetCurrent(byref(current)) == 0
    made["by the runtime"] = current.value or 0


def failed_set_device() -> None:
    assert runtime.cudaSetDevice(2) == 0
    assert runtime.cudaSetDevice(99) != 0
    by_runtime()


def set_current() -> None:
    assert driver.cuCtxSetCurrent(retained(3)) == 0
    by_driver()


def context_of_the_runtime() -> None:
    assert driver.cuCtxSetCurrent(made["by the runtime"]) == 0
    by_driver()


def created() -> None:
    context = c_void_p()
    assert driver.cuCtxCreate_v2(byref(context), 0, 1) == 0
    by_driver(1)
    assert driver.cuCtxCreate_v3(byref(context), None, 0, 0, 3) == 0
    by_driver(2)
    assert driver.cuCtxCreate_v4(byref(context), None, 0, 4) == 0
    by_driver(3)
    assert driver.cuCtxDestroy_v2(context) == 0
    by_driver(4)


def pushed() -> None:
    assert runtime.cudaSetDevice(1) == 0
    assert driver.cuCtxPushCurrent_v2(retained(3)) == 0
    by_driver(1)
    assert driver.cuCtxPopCurrent_v2(None) == 0
    by_driver(2)


def not_seen_made() -> None:
    three, four = retained(3), retained(4)
    assert driver.cuCtxSetCurrent(2 * four - three) == 0  # the simulated contexts are elements of one array
    by_driver()


def no_context() -> None:
    assert driver.cuCtxSetCurrent(retained(3)) == 0
    assert driver.cuCtxSetCurrent(None) == 0
    by_driver()


SCENARIOS: list[Callable[[], None]] = [
    nothing, set_device, failed_set_device, set_current, context_of_the_runtime, created, pushed, not_seen_made,
    no_context,
]  # fmt: skip


def main() -> None:
    """Runs every scenario in a thread of its own."""
    gate = sys.argv[1] if len(sys.argv) > 1 else ""
    if gate:
        assert runtime.cudaSetDevice(2) == 0
        print("ready", os.getpid(), file=sys.stderr, flush=True)
        while not Path(gate).exists():
            time.sleep(0.005)
        tids["chosen before"] = threading.get_native_id()
        by_runtime()
    else:
        assert driver.cuInit(0) == 0
    for scenario in SCENARIOS:

        def run(scenario: Callable[[], None] = scenario) -> None:
            tids[scenario.__name__] = threading.get_native_id()
            scenario()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    print(json.dumps(tids))


if __name__ == "__main__":
    main()
