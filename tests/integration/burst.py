"""A short program that loads a library and calls it at once, from several threads at the same moment."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.integration.recording import OTHER_USER

# Prints its process id and calls. Told to wait: prints "ready" when it has loaded the library, calls when its input has
# a line, and ends at the next. Told to loop: never ends.
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static int (*cuda_malloc)(void **, unsigned long);
static pthread_barrier_t start;
static int calls;
static void *caller(void *unused)
{
    void *block;
    pthread_barrier_wait(&start);
    for (int i = 0; i < calls; i++)
        cuda_malloc(&block, 1);
    return unused;
}
static void call_from(int threads)
{
    pthread_t thread[64];
    pthread_barrier_init(&start, 0, threads);
    for (int i = 1; i < threads; i++)
        pthread_create(&thread[i], 0, caller, 0);
    caller(0);
    for (int i = 1; i < threads; i++)
        pthread_join(thread[i], 0);
}
/* burst LIBRARY THREADS CALLS HOLD_MS [wait|loop] */
int main(int argc, char **argv)
{
    int threads = atoi(argv[2]), hold_ms = atoi(argv[4]);
    const char *how = argc > 5 ? argv[5] : "";
    char line[16];
    calls = atoi(argv[3]);
    printf("%d\n", getpid());
    fflush(stdout);
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    cuda_malloc = dlsym(library, "cudaMalloc");
    if (!strcmp(how, "wait")) {
        puts("ready");
        fflush(stdout);
        fgets(line, sizeof(line), stdin);
    }
    do {
        call_from(threads);
        usleep(hold_ms * 1000);
    } while (!strcmp(how, "loop"));
    if (!strcmp(how, "wait"))
        fgets(line, sizeof(line), stdin);
    return 0;
}
"""


def build(folder: Path) -> Path:
    """The program."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "burst.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "-pthread", "-o", folder / "burst", folder / "burst.c", "-ldl"], check=True)
    return folder / "burst"


# The agent refuses its own children, and the test may be the agent: a shell stands between the two.
BETWEEN = ["sh", "-c", 'exec 3<&0; "$0" "$@" <&3 & wait $!']


class Burst:
    """A running program that waits for a command."""

    def __init__(self, command: Sequence[object], uid: int | None = OTHER_USER) -> None:
        self._process = subprocess.Popen(
            [*BETWEEN, *map(str, command), "wait"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=uid,
        )
        assert self._process.stdout
        self.pid = int(self._process.stdout.readline())
        if self._process.stdout.readline() != "ready\n":
            self.kill()
            raise RuntimeError(f"{command} cannot be run")

    def go(self) -> None:
        """Lets the program make its calls."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Waits until the program has called and ended."""
        self._process.communicate("\n")
        assert self._process.returncode == 0

    def kill(self) -> None:
        """Kills the program unless it has ended."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._process.communicate()


def run_burst(
    program: Path, library: Path, *, threads: int, calls: int, hold_ms: int = 0, uid: int = OTHER_USER
) -> int:
    """Runs one to its end; its process id."""
    command = [*BETWEEN, program, library, threads, calls, hold_ms]
    done = subprocess.run(list(map(str, command)), user=uid, capture_output=True, text=True, check=True)
    return int(done.stdout)
