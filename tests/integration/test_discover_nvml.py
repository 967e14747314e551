"""discover.gpus through the real NVML binding, on a small library of ours that answers like NVML."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

# One GPU that answers everything and a second that supports only what it must.
NVML = r"""
#include <stdio.h>
#include <string.h>
#define NOT_SUPPORTED 3
typedef unsigned long long u64;
typedef struct { int index; } *handle;
static struct { int index; } gpus[2] = {{0}, {1}};
#define FIRST_ONLY (h->index ? NOT_SUPPORTED : 0)
int nvmlInitWithFlags(unsigned f) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, handle *h) { *h = (handle)&gpus[i]; return 0; }
int nvmlDeviceGetUUID(handle h, char *s, unsigned n) { snprintf(s, n, "GPU-%d", h->index); return 0; }
int nvmlDeviceGetName(handle h, char *s, unsigned n) { snprintf(s, n, "Simulated"); return 0; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "550.54.15"); return 0; }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = 12040; return 0; }
int nvmlDeviceGetMemoryInfo(handle h, u64 *m) { m[0] = 1000; m[1] = 600; m[2] = 400; return 0; }
int nvmlDeviceGetUtilizationRates(handle h, unsigned *u) { u[0] = 87; u[1] = 12; return FIRST_ONLY; }
int nvmlDeviceGetClockInfo(handle h, int type, unsigned *c) { *c = 1200; return FIRST_ONLY; }
int nvmlDeviceGetMaxClockInfo(handle h, int type, unsigned *c) { *c = 1980; return 0; }
int nvmlDeviceGetPowerUsage(handle h, unsigned *mw) { *mw = 350500; return FIRST_ONLY; }
int nvmlDeviceGetCurrentClocksThrottleReasons(handle h, u64 *r) { *r = 0x1 | 0x4 | 0x40; return FIRST_ONLY; }
"""

PRINT = """
from ingero.discover.gpus import open_nvml
with open_nvml() as nvml:
    print(repr((nvml.reason, nvml.driver_version, nvml.cuda_version)))
    for gpu in nvml.gpus:
        print(repr((gpu.index, gpu.uuid, gpu.name, gpu.memory_bytes, gpu.max_sm_clock_mhz)))
    for one in nvml.sample():
        print(repr((one.uuid, one.busy_percent, one.memory_used_bytes, one.sm_clock_mhz, one.slowdowns, one.power_w)))
"""


def output(folder: Path, init: int) -> list[str]:
    """What a fresh process sees; the library is looked up when a process first opens NVML."""
    (folder / "nvml.c").write_text(NVML.replace("INIT", str(init)))
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", library, folder / "nvml.c"], check=True)
    environ = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", PRINT], env=environ, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_gpus_and_samples_are_read_and_unsupported_values_are_none(tmp_path: Path) -> None:
    assert output(tmp_path, 0) == [
        "('', '550.54.15', (12, 4))",
        "(0, 'GPU-0', 'Simulated', 1000, 1980)",
        "(1, 'GPU-1', 'Simulated', 1000, 1980)",
        "('GPU-0', 87, 400, 1200, ('power cap', 'thermal (hardware)'), 350.5)",
        "('GPU-1', None, 400, None, None, None)",
    ]


def test_a_driver_that_is_not_loaded_is_the_reason(tmp_path: Path) -> None:
    driver_not_loaded = 9
    (line,) = output(tmp_path, driver_not_loaded)
    assert "Driver Not Loaded" in line
