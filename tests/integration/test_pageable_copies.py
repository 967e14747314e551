"""Which asynchronous copies wait for their stream: those with pageable memory, known to be so or seen to be."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.demo.workloads.program import Program
from ingero.events import HostMemory, SyncIntervalFlag
from tests.integration.targets import WAITER, rows, wait_for_end
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration
STEPS = 5
CUT = STEPS - 1  # sync intervals of a stream that each step ends: the first has no beginning
TO_DEVICE, TO_HOST, INSIDE = 1, 2, 3  # cudaMemcpyKind
BATCH = 4 << 20  # bytes, too many to be taken along at once

_LIBRARY = """
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
struct dim3 { unsigned x, y, z; };
int waits_us;
int cudaLaunchKernel(const void *f, struct dim3 g, struct dim3 b, void **a, size_t s, void *stream)
{
	(void)f, (void)g, (void)b, (void)a, (void)s, (void)stream;
	return 0;
}
static void spin(void)
{
	struct timespec begin, now;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < waits_us * 1000L);
}
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
	(void)to, (void)from, (void)bytes, (void)kind, (void)stream;
	if (waits_us >= 100)
		usleep(waits_us);
	else
		spin();
	return 0;
}
int cudaStreamBeginCapture(void *stream, int mode) { return !stream && mode; }
int cudaStreamEndCapture(void *stream, void **graph) { *graph = stream; return 0; }
int cudaHostAlloc(void **to, size_t bytes, unsigned flags) { (void)flags; return !(*to = malloc(bytes)); }
int cudaFreeHost(void *memory) { free(memory); return 0; }
"""

_PROGRAM = f"""
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct dim3 {{ unsigned x, y, z; }};
int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, size_t, void *);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaStreamBeginCapture(void *, int);
int cudaStreamEndCapture(void *, void **);
int cudaHostAlloc(void **, size_t, unsigned);
int cudaFreeHost(void *);
extern int waits_us;
/* stream, memory, cudaMemcpyKind, bytes, microseconds that the copy waits */
int main(int count, char **arguments)
{{
	struct dim3 one = {{1, 1, 1}};
	char *device = (char *)0x7f0000000000, *host, *inside;
	void *freed, *graph;

	if (!strcmp(arguments[1], "late")) {{
		puts("loaded");
		fflush(stdout);
		getchar();
	}}
	cudaHostAlloc(&freed, 1 << 20, 0);
	cudaFreeHost(freed);
	for (int i = 2; i + 4 < count; i += 5) {{
		void *stream = (void *)strtoul(arguments[i], NULL, 0);
		int kind = atoi(arguments[i + 2]);
		size_t bytes = strtoul(arguments[i + 3], NULL, 0);

		if (!strcmp(arguments[i + 1], "pinned"))
			cudaHostAlloc((void **)&host, 2 << 20, 0);
		else
			host = malloc(4 << 20);
		inside = host + 4096;
		for (int step = 0; step < {STEPS}; step++) {{
			cudaLaunchKernel(main, one, one, NULL, 0, stream);
			if (!strcmp(arguments[i + 1], "captured"))
				cudaStreamBeginCapture(stream, 0);
			waits_us = atoi(arguments[i + 4]);
			cudaMemcpyAsync(kind == {TO_DEVICE} ? device : inside, kind == {TO_DEVICE} ? inside : device, bytes,
					kind, stream);
			if (!strcmp(arguments[i + 1], "captured"))
				cudaStreamEndCapture(stream, &graph);
		}}
	}}
	return 0;
}}
"""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Copies on a stream of their own, each after a launch, and what is to be found of them."""

    memory: str
    kind: int
    sync_intervals: int
    told: HostMemory
    bytes: int = 4
    waits_us: int = 0
    flags: int = 0


_WAITS, _BEFORE = (
    int(SyncIntervalFlag.PAGEABLE_COPY),
    int(SyncIntervalFlag.PAGEABLE_COPY | SyncIntervalFlag.BEFORE_COPY),
)
SEEN_WHOLE = {
    "a result into pageable memory": Copy(
        memory="pageable", kind=TO_HOST, sync_intervals=CUT, flags=_WAITS, told=HostMemory.PAGEABLE
    ),
    "a result into pinned memory": Copy(memory="pinned", kind=TO_HOST, sync_intervals=0, told=HostMemory.PINNED),
    "a few bytes to the GPU": Copy(memory="pageable", kind=TO_DEVICE, sync_intervals=0, told=HostMemory.PAGEABLE),
    "a few bytes to the GPU that waited, nobody saw for what": Copy(
        memory="pageable", kind=TO_DEVICE, waits_us=500, sync_intervals=0, told=HostMemory.PAGEABLE
    ),
    "as many bytes to the GPU as are taken along": Copy(
        memory="pageable", kind=TO_DEVICE, bytes=2 << 20, waits_us=400, sync_intervals=0, told=HostMemory.PAGEABLE
    ),
    "a batch to the GPU": Copy(
        memory="pageable",
        kind=TO_DEVICE,
        bytes=BATCH,
        waits_us=200,
        sync_intervals=CUT,
        flags=_BEFORE,
        told=HostMemory.PAGEABLE,
    ),
    "more bytes to the GPU than the host can copy so soon": Copy(
        memory="pageable", kind=TO_DEVICE, bytes=BATCH, sync_intervals=0, told=HostMemory.PAGEABLE
    ),
    "bytes of the GPU": Copy(memory="pageable", kind=INSIDE, waits_us=500, sync_intervals=0, told=HostMemory.UNKNOWN),
    "a result in a captured graph": Copy(memory="captured", kind=TO_HOST, sync_intervals=0, told=HostMemory.PAGEABLE),
}
SEEN_LATE = {
    "a result that waited": Copy(
        memory="pageable", kind=TO_HOST, waits_us=500, sync_intervals=CUT, flags=_WAITS, told=HostMemory.SEEMS_PAGEABLE
    ),
    "a result at once": Copy(memory="pageable", kind=TO_HOST, sync_intervals=0, told=HostMemory.UNKNOWN),
    "a batch that waited": Copy(
        memory="pageable",
        kind=TO_DEVICE,
        bytes=BATCH,
        waits_us=500,
        sync_intervals=CUT,
        flags=_BEFORE,
        told=HostMemory.SEEMS_PAGEABLE,
    ),
    "a few bytes to the GPU that waited, nobody saw for what": Copy(
        memory="pageable", kind=TO_DEVICE, waits_us=500, sync_intervals=0, told=HostMemory.SEEMS_PAGEABLE
    ),
    "bytes to the GPU that are taken along, or pinned": Copy(
        memory="pageable", kind=TO_DEVICE, bytes=2 << 20, waits_us=400, sync_intervals=0, told=HostMemory.UNKNOWN
    ),
    "a pinned result that was held up": Copy(
        memory="pinned", kind=TO_HOST, waits_us=500, sync_intervals=0, told=HostMemory.PINNED
    ),
}


def stream_of(number: int) -> int:
    """The handle of the stream of the copies with this number."""
    return 0x1000 + number


def command(program: Path, when: str, copies: dict[str, Copy]) -> list[str]:
    """The program that makes these copies."""
    cases = [
        (hex(stream_of(number)), one.memory, one.kind, one.bytes, one.waits_us)
        for number, one in enumerate(copies.values())
    ]
    return [str(program), when, *(str(word) for case in cases for word in case)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "library.c").write_text(_LIBRARY)
    (folder / "program.c").write_text(_PROGRAM)
    library, program = folder / "libcudart.so.12", folder / "program"
    flags = ["-O0", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.12"]
    subprocess.run(["gcc", *flags, "-o", library, folder / "library.c"], check=True)
    subprocess.run(["gcc", "-O0", f"-Wl,-rpath,{folder}", "-o", program, folder / "program.c", library], check=True)
    return program


@pytest.fixture(scope="module")
def whole(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of the program since before its first call."""
    folder = tmp_path_factory.mktemp("whole")
    gate, library = folder / "go", program.parent / "libcudart.so.12"
    words = [sys.executable, "-c", WAITER, gate, library, *command(program, "whole", SEEN_WHOLE)]
    with Program([str(word) for word in words]) as running:
        running.wait_for("loaded")
        with tracing(folder, pids=[running.pid], options=["--record-all"]) as tracer:
            gate.touch()
            running.finish()
            wait_for_end(tracer)
    return tracer.database


def seen_late(program: Path, folder: Path) -> Path:
    """A recording of the program that has run before."""
    words = command(program, "late", SEEN_LATE)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin
        assert running.stdout
        running.stdout.readline()
        with tracing(folder, pids=[running.pid], options=["--record-all"]) as tracer:
            running.stdin.write("\n")
            running.stdin.close()
            running.wait()
            wait_for_end(tracer)
    return tracer.database


def found_of(database: Path, number: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """The sync intervals of the stream of copies with this number (launches, flags, bytes); what their records say."""
    flags, stream = _BEFORE, stream_of(number)
    sync_intervals = rows(
        database, f"SELECT launches, flags & {flags}, bytes FROM raw_sync_intervals WHERE stream = ?", stream
    )
    told = rows(database, "SELECT DISTINCT handle FROM cuda_events WHERE stream = ? AND op = 'cudaMemcpyAsync'", stream)
    return [tuple(map(int, row)) for row in sync_intervals], [int(value or 0) for (value,) in told]


def check(database: Path, copies: dict[str, Copy]) -> None:
    """Each stream has the sync intervals that its copies end, and each record says what is known of the memory."""
    for number, (name, copy) in enumerate(copies.items()):
        assert (name, *found_of(database, number)) == (
            name,
            [(1, copy.flags, copy.bytes)] * copy.sync_intervals,
            [int(copy.told)],
        )


def test_of_a_program_seen_from_its_begin_the_memory_tells_which_copies_wait(whole: Path) -> None:
    check(whole, SEEN_WHOLE)


def test_what_went_each_way_is_counted_apart_and_what_stays_on_the_device_is_not(whole: Path) -> None:
    sums = "sum(host_to_gpu_bytes), sum(gpu_to_host_bytes), sum(blocked_ns) > 0"
    found = rows(whole, f"SELECT {sums} FROM copies WHERE op_name = 'cudaMemcpyAsync'")
    moved = [sum(STEPS * one.bytes for one in SEEN_WHOLE.values() if one.kind == way) for way in (TO_DEVICE, TO_HOST)]
    assert found == [(*moved, 1)]


def test_of_a_program_seen_later_the_calls_themselves_tell_which_copies_wait(program: Path, tmp_path: Path) -> None:
    check(seen_late(program, tmp_path), SEEN_LATE)
