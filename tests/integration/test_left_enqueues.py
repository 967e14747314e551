"""Calls that never return, because they are left by longjmp or their thread ends in them, are over all the same."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.targets import rows, wait_for_end
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration
STEPS = 20

_LIBRARY = """
#include <stddef.h>
#include <stdlib.h>
struct dim3 { unsigned x, y, z; };
int cudaLaunchKernel(const void *run, struct dim3 g, struct dim3 b, void **a, size_t s, void *stream)
{
	(void)g, (void)b, (void)a, (void)s, (void)stream;
	((void (*)(void))run)();
	return 0;
}
int cudaStreamSynchronize(void *stream) { return stream != 0; }
void (*in_free)(void);
int cudaMalloc(void **to, size_t bytes) { return !(*to = malloc(bytes)); }
int cudaFree(void *memory)
{
	in_free();
	free(memory);
	return 0;
}
"""
_PROGRAM = f"""
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
struct dim3 {{ unsigned x, y, z; }};
int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, size_t, void *);
int cudaStreamSynchronize(void *);
int cudaMalloc(void **, size_t);
int cudaFree(void *);
extern void (*in_free)(void);
static struct dim3 one = {{1, 1, 1}};
static jmp_buf outside;
static void *memory;
static void leave(void) {{ longjmp(outside, 1); }}
static void end(void) {{ pthread_exit(NULL); }}
static void nothing(void) {{}}
static void *ends_in_launch(void *unused)
{{
	cudaLaunchKernel((void *)end, one, one, NULL, 0, NULL);
	return unused;
}}
static void *ends_in_free(void *unused)
{{
	in_free = end;
	cudaFree(memory);
	return unused;
}}
static void run(void *(*body)(void *))
{{
	pthread_t thread;

	pthread_create(&thread, NULL, body, NULL);
	pthread_join(thread, NULL);
}}
int main(int count, char **arguments)
{{
	(void)count;
	puts("loaded");
	fflush(stdout);
	getchar();
	cudaMalloc(&memory, 1 << 20);
	if (!strcmp(arguments[1], "jump") && !setjmp(outside))
		cudaLaunchKernel((void *)leave, one, one, NULL, 0, NULL);
	if (!strcmp(arguments[1], "launch"))
		run(ends_in_launch);
	if (!strcmp(arguments[1], "free"))
		run(ends_in_free);
	for (int i = 0; i < {STEPS}; i++) {{
		cudaLaunchKernel((void *)nothing, one, one, NULL, 0, NULL);
		usleep(1000);
		cudaStreamSynchronize(NULL);
	}}
	return 0;
}}
"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a recording says of the program."""

    sync_intervals: int
    memory: tuple[int, int]  # live bytes, allocations and frees that could not be paired
    drops: dict[str, int]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "library.c").write_text(_LIBRARY)
    (folder / "program.c").write_text(_PROGRAM)
    library, program = folder / "libcudart.so.12", folder / "program"
    flags = ["-O0", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.12"]
    subprocess.run(["gcc", *flags, "-o", library, folder / "library.c"], check=True)
    flags = ["-O0", "-pthread", f"-Wl,-rpath,{folder}"]
    subprocess.run(["gcc", *flags, "-o", program, folder / "program.c", library], check=True)
    return program


def recorded(program: Path, how: str, folder: Path) -> Found:
    """What is recorded of the program, of which one call is left in this way."""
    with subprocess.Popen([program, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin
        assert running.stdout
        running.stdout.readline()
        with tracing(folder, pids=[running.pid]) as tracer:
            running.stdin.write("\n")
            running.stdin.close()
            running.wait()
            wait_for_end(tracer)
    ((sync_intervals,),) = rows(tracer.database, "SELECT count(*) FROM raw_sync_intervals")
    memory = "SELECT live_bytes, unpaired FROM raw_memory_seconds ORDER BY id DESC LIMIT 1"
    ((live_bytes, unpaired),) = rows(tracer.database, memory)
    lost = dict(rows(tracer.database, "SELECT counter, sum(count) FROM raw_drops GROUP BY counter"))
    return Found(sync_intervals=sync_intervals, memory=(live_bytes, unpaired), drops=lost)


@pytest.mark.parametrize(("how", "stale"), [("jump", 1), ("launch", 0)])
def test_a_launch_that_is_left_does_not_end_the_sync_intervals_of_its_stream(
    program: Path, how: str, stale: int, tmp_path: Path
) -> None:
    found = recorded(program, how, tmp_path)
    assert found.drops.get("frame_stale", 0) == stale
    assert found.sync_intervals == STEPS - 1  # the first sync of a stream has no beginning
    assert found.memory == (1 << 20, 0)


def test_after_a_thread_has_ended_in_a_free_what_is_live_is_not_told_as_exact(program: Path, tmp_path: Path) -> None:
    found = recorded(program, "free", tmp_path)
    assert found.memory == (1 << 20, 1)
    assert found.drops["allocations_unpaired"] == 1
    assert found.sync_intervals == STEPS - 1
