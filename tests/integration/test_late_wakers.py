"""The waker of a call is who ended its last sleep, not who found its thread awake after that."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.targets import rows, wait_for_end
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration
CALLS = 100  # each is recorded, as one of the first of its kind

# Sleeps for a millisecond; then waits for what another CPU signals without end, so mostly before this thread sleeps.
_LIBRARY = """
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int word;
int cudaStreamSynchronize(void *stream)
{
	struct timespec millisecond = {0, 1000000};

	nanosleep(&millisecond, NULL);
	syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &millisecond);
	return stream != 0;
}
"""
_PROGRAM = f"""
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int cudaStreamSynchronize(void *);
extern int word;
static void move_to(int cpu)
{{
	cpu_set_t only;

	CPU_ZERO(&only);
	CPU_SET(cpu, &only);
	sched_setaffinity(0, sizeof(only), &only);
}}
static void *signals(void *unused)
{{
	move_to(1);
	for (;;)
		syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1);
	return unused;
}}
int main(void)
{{
	pthread_t thread;

	puts("loaded");
	fflush(stdout);
	getchar();
	pthread_create(&thread, NULL, signals, NULL);
	move_to(0);
	for (int i = 0; i < {CALLS}; i++)
		cudaStreamSynchronize(NULL);
	return 0;
}}
"""
# of each call: whether the interval off the CPU whose end it tells was ended by the same
_ENDS = (
    "SELECT e.waker_kind = o.waker_kind AND e.waker_tid = o.waker_tid FROM raw_events e JOIN raw_offcpu o "
    "ON o.tid = e.tid AND o.start_ns BETWEEN e.start_ns AND e.start_ns + e.duration_ns "
    "AND abs(o.woken_ns - e.woken_ns) < 1000"
)


@pytest.mark.skipif({0, 1} - os.sched_getaffinity(0) != set(), reason="needs CPUs 0 and 1")
@pytest.mark.alone  # where others want the CPUs, few signals meet the thread on its way
def test_who_signals_a_thread_on_its_way_to_sleep_has_not_ended_the_sleep_before(tmp_path: Path) -> None:
    (tmp_path / "library.c").write_text(_LIBRARY)
    (tmp_path / "program.c").write_text(_PROGRAM)
    library, program = tmp_path / "libcudart.so.12", tmp_path / "program"
    flags = ["-O0", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.12"]
    subprocess.run(["gcc", *flags, "-o", library, tmp_path / "library.c"], check=True)
    flags = ["-O0", "-pthread", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(["gcc", *flags, "-o", program, tmp_path / "program.c", library], check=True)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin
        assert running.stdout
        running.stdout.readline()
        with tracing(tmp_path, pids=[running.pid]) as tracer:
            running.stdin.write("\n")
            running.stdin.close()
            running.wait()
            wait_for_end(tracer)
    found = rows(tracer.database, _ENDS)
    others = sum(not is_same for (is_same,) in found)
    print(f"\n{len(found)} calls, {others} with another waker than their last sleep")
    assert len(found) > CALLS / 2
    assert others == 0
