"""Any user of the machine names threads as they like: the agent goes on, and others are recorded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.targets import rows, wait_for_end
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration
CALLS = 100

# Waits until another thread signals, which did not run before tracing began: its name is asked for when it wakes.
_LIBRARY = """
#include <pthread.h>
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t ready = PTHREAD_COND_INITIALIZER;
int done;
int cudaStreamSynchronize(void *stream)
{
	pthread_mutex_lock(&lock);
	while (!done)
		pthread_cond_wait(&ready, &lock);
	done = 0;
	pthread_mutex_unlock(&lock);
	return stream != 0;
}
"""
_PROGRAM = f"""
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
int cudaStreamSynchronize(void *);
extern pthread_mutex_t lock;
extern pthread_cond_t ready;
extern int done;
static void *wakes(void *unused)
{{
	prctl(PR_SET_NAME, "\\xff\\x1b[2J\\n\\xfe");
	for (;;) {{
		usleep(3000);
		pthread_mutex_lock(&lock);
		done = 1;
		pthread_cond_signal(&ready);
		pthread_mutex_unlock(&lock);
	}}
	return unused;
}}
int main(void)
{{
	pthread_t thread;

	puts("loaded");
	fflush(stdout);
	getchar();
	pthread_create(&thread, NULL, wakes, NULL);
	for (int i = 0; i < {CALLS}; i++)
		cudaStreamSynchronize(NULL);
	return 0;
}}
"""


def test_a_thread_whose_name_is_no_text_does_not_end_the_agent(tmp_path: Path) -> None:
    (tmp_path / "library.c").write_text(_LIBRARY)
    (tmp_path / "program.c").write_text(_PROGRAM)
    library, program = tmp_path / "libcudart.so.12", tmp_path / "program"
    flags = ["-O0", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcudart.so.12"]
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
    assert rows(tracer.database, "SELECT sum(count) FROM raw_op_stats") == [(CALLS,)]
    wakers = rows(tracer.database, "SELECT DISTINCT text FROM raw_events JOIN raw_strings ON string = waker_name")
    assert ("\ufffd\x1b[2J\n\ufffd",) in wakers
