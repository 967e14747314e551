"""A device is not busy while the thread that waited for it is held up by the kernel, woken as it already was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ingero.events import CLOCKS
from tests.integration.epoch_cases import recorded, recorded_parts, true_parts
from tests.integration.test_epochs import FAULT_S, both_sides, is_close, print_parts, unseen_ns

pytestmark = pytest.mark.integration

HELD_UP_MS = 5

# The simulated driver sleeps in poll(). Every fourth time that a device wakes it, the kernel holds it up: vfork() lets
# its caller not run until the child is gone.
SHIM = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int poll(struct pollfd *files, nfds_t count, int timeout_ms)
{{
	static int (*own)(struct pollfd *, nfds_t, int);
	static int woken;
	struct timespec held_up = {{ 0, {HELD_UP_MS}000000 }};
	static pid_t child;
	int ready;

	if (!own)
		own = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
	ready = own(files, count, timeout_ms);
	if (count != 2 || timeout_ms != 100 || ready < 1 || ++woken % 4)
		return ready;
	if (child)
		waitpid(child, NULL, WNOHANG); /* gone for long: no other sleep is to end this wait */
	child = vfork();
	if (!child) {{
		nanosleep(&held_up, NULL);
		_exit(0);
	}}
	return ready;
}}
"""


def build_shim(folder: Path) -> Path:
    (folder / "shim.c").write_text(SHIM)
    path = folder / "shim.so"
    subprocess.run(["gcc", "-O2", "-w", "-shared", "-fPIC", "-o", path, folder / "shim.c", "-ldl"], check=True)
    return path


def test_the_device_was_ready_when_the_wait_for_it_ended(tmp_path: Path) -> None:
    with recorded(tmp_path, "block", variables={"LD_PRELOAD": str(build_shim(tmp_path))}) as (run, recordings):
        run.phase("held up", FAULT_S)
    (recording,) = recordings
    epochs, drains = both_sides(recording, 1, "held up")
    found, true = recorded_parts(epochs), true_parts(epochs, drains)
    print_parts("held up", epochs, found, true)
    assert true.late_ns > 0.2 * HELD_UP_MS * 1e6 * len(epochs)
    unseen = unseen_ns(recording, "held up", epochs)
    assert is_close(found.busy_ns, true.busy_ns, found.wall_ns, unseen)
    assert is_close(found.late_ns, true.late_ns, found.wall_ns, unseen)
    blocked_ns = int(epochs["drain_clock_ns"][:, CLOCKS.index("kernel_lock")].sum())
    assert blocked_ns > 0.9 * 0.25 * HELD_UP_MS * 1e6 * len(epochs)
