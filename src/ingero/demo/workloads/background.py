"""Threads that a training process runs besides the loop: hogs of the GIL, of a lock, of CPUs, and of streams."""

import hashlib
import random
import threading
import time
from argparse import Namespace

from ingero.demo.workloads.host_knobs import HostKnobs
from ingero.demo.workloads.minitorch import cuda, naming
from ingero.demo.workloads.minitorch.kernels import Kernel

GIL_PERIOD_S = 0.02
LOCK_PAUSE_S = 0.002  # on average
HASH_ROUNDS = 20_000  # about 5 ms without the interpreter
BYSTANDER_LAUNCHES = 20
BYSTANDER_PAUSE_S = 0.002


def start_gil_hog(options: Namespace) -> None:
    """Start the thread of --gil-hog, if asked for."""
    if options.gil_hog is None:
        return
    knobs = HostKnobs(options.knob) if options.knob else None
    threading.Thread(target=hog_interpreter, args=(options.gil_hog, knobs), name="gil-hog", daemon=True).start()


def hog_interpreter(duty: float, knobs: HostKnobs | None) -> None:
    """Run bytecode for `duty` of every 20 ms, or for as much as the knobs say if they say more."""
    naming.name_this_thread("gil-hog")
    while True:
        share = max(duty, knobs.read().gil_duty if knobs else 0.0)
        compute_metrics(GIL_PERIOD_S * share)
        if share < 1:
            time.sleep(GIL_PERIOD_S * (1 - share))


def start_lock_hog(options: Namespace, lock: threading.Lock) -> None:
    """Start the thread of --lock-hog, if asked for."""
    if options.lock_hog and options.knob:
        knobs = HostKnobs(options.knob)
        threading.Thread(target=write_metrics, args=(lock, knobs), name="lock-hog", daemon=True).start()


def write_metrics(lock: threading.Lock, knobs: HostKnobs) -> None:
    """Hold the lock of the metrics while they are sent away, at random times, so that no step keeps clear of it."""
    naming.name_this_thread("lock-hog")
    pauses = random.Random(1)
    while True:
        hold_s = knobs.read().lock_ms / 1000
        if hold_s:
            with lock:
                time.sleep(hold_s)
        time.sleep(pauses.expovariate(1 / LOCK_PAUSE_S))


def start_native_threads(options: Namespace) -> None:
    """Start the threads of --native-threads; they compute for as long as --knob says so."""
    knobs = HostKnobs(options.knob) if options.knob else None
    for number in range(options.native_threads if knobs else 0):
        threading.Thread(target=compute_natively, args=(number, knobs), name="OMP", daemon=True).start()


def compute_natively(number: int, knobs: HostKnobs) -> None:
    """Compute outside the interpreter while the knob asks for more than `number` threads; for ever."""
    naming.name_this_thread("OMP")
    while True:
        if number < knobs.read().native_threads:
            hashlib.pbkdf2_hmac("sha256", b"", b"", HASH_ROUNDS)
        else:
            time.sleep(GIL_PERIOD_S)


def compute_metrics(seconds: float) -> int:
    """Count in pure Python, holding the interpreter whenever it is given."""
    end = time.perf_counter() + seconds
    counted = 0
    while time.perf_counter() < end:
        counted += 1
    return counted


def start_bystanders(count: int) -> None:
    """Start `count` threads that each keep a stream busy, never synchronized with the training."""
    if not count:
        return
    kernel = Kernel("bystander_kernel", duration_us=5.0)
    for _ in range(count):
        threading.Thread(target=launch_and_wait, args=(kernel,), name="bystander", daemon=True).start()


def launch_and_wait(kernel: Kernel) -> None:
    """Launch a few kernels on an own stream, wait for them, pause; for ever."""
    naming.name_this_thread("bystander")
    cuda.enter()
    stream = cuda.Stream()
    with cuda.stream(stream):
        while True:
            for _ in range(BYSTANDER_LAUNCHES):
                kernel.launch()
            stream.synchronize()
            time.sleep(BYSTANDER_PAUSE_S)
