"""A device is not busy while the thread that is to wait for it, or has waited, is held up by the kernel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ingero.events import STATES
from tests.integration.sync_interval_cases import recorded, recorded_parts, true_parts
from tests.integration.test_sync_intervals import FAULT_S, both_sides, is_close, print_parts, unseen_ns

pytestmark = pytest.mark.integration

# The simulated driver sleeps in poll(). Every fourth time the kernel holds it up as a device has woken it, or before it
# sleeps, until the GPU has long been ready: vfork() lets its caller not run until the child is gone.
SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void hold_up(void)
{
	struct timespec held_up = { 0, HELD_UP_MS * 1000000 };
	static pid_t child;

	if (child)
		waitpid(child, NULL, WNOHANG); /* gone for long: no other sleep is to end this wait */
	child = vfork();
	if (!child) {
		nanosleep(&held_up, NULL);
		_exit(0);
	}
}

int poll(struct pollfd *files, nfds_t count, int timeout_ms)
{
	static int (*own)(struct pollfd *, nfds_t, int);
	static int waits;
	int is_chosen, ready;

	if (!own)
		own = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
	is_chosen = count == 2 && timeout_ms == 100 && ++waits % 4 == 0;
	if (is_chosen && HELD_UP_BEFORE)
		hold_up();
	ready = own(files, count, timeout_ms);
	if (is_chosen && !HELD_UP_BEFORE)
		hold_up();
	return ready;
}
"""


def build_shim(folder: Path, held_up_ms: int, *, is_before: bool) -> Path:
    (folder / "shim.c").write_text(SHIM)
    path = folder / "shim.so"
    how = (f"-DHELD_UP_MS={held_up_ms}", f"-DHELD_UP_BEFORE={int(is_before)}")
    command = ["gcc", "-O2", "-w", *how, "-shared", "-fPIC", "-o", path, folder / "shim.c", "-ldl"]
    subprocess.run(command, check=True)
    return path


@pytest.mark.parametrize(("held_up_ms", "is_before"), [(5, False), (12, True)])
def test_the_device_was_ready_when_the_wait_for_it_ended(tmp_path: Path, held_up_ms: int, *, is_before: bool) -> None:
    variables = {"LD_PRELOAD": str(build_shim(tmp_path, held_up_ms, is_before=is_before))}
    with recorded(tmp_path, "block", variables=variables) as (run, recordings):
        run.phase("held up", FAULT_S)
    (recording,) = recordings
    sync_intervals, syncs = both_sides(recording, 1, "held up")
    found, true = recorded_parts(sync_intervals), true_parts(sync_intervals, syncs)
    print_parts("held up", sync_intervals, found, true)
    held_up_ns = 0.25 * held_up_ms * 1e6 * len(sync_intervals)
    assert true.return_delay_ns > 0.4 * held_up_ns, "of the longer ones the GPU was busy for a half"
    unseen = unseen_ns(recording, "held up", sync_intervals)
    assert is_close(found.busy_ns, true.busy_ns, found.wall_ns, unseen)
    assert is_close(found.return_delay_ns, true.return_delay_ns, found.wall_ns, unseen)
    blocked_ns = int(sync_intervals["sync_state_ns"][:, STATES.index("uninterruptible")].sum())
    assert blocked_ns > 0.9 * held_up_ns
