"""Who ended a sleep: a thread only if it did so itself."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.targets import until

from .conftest import Start
from .rig import SchedulerPrograms, Workload, measure, names_of

pytestmark = pytest.mark.integration
SAMPLES = 60
PORT = 17171


def _wakers(scheduler: SchedulerPrograms, work: Workload, comm: str) -> Counter[tuple[str, str]]:
    """(kind, name of the thread) of a thread's last waker, read many times from the first that is seen on."""
    kinds, found = names_of("waker_kind", "WAKER_"), Counter[tuple[str, str]]()
    scheduler.track(work.pid)
    measure(0.1)
    until(lambda: _is_woken(scheduler.dump(work.pid), comm), f"{comm} was woken")
    for _ in range(SAMPLES):
        rows = scheduler.dump(work.pid)
        names = {int(row["tid"]): row["comm"].decode() for row in rows}
        for row in rows[rows["comm"] == comm.encode()]:
            tid = int(row["waker_tid"])
            found[kinds[int(row["waker_kind"])], names.get(tid, str(tid) if tid else "")] += 1
        measure(0.005)
    drops = scheduler.drops()
    print(f"\nwakers of {comm}: {dict(found)}; {drops}")
    if "wakeup_missed" in drops:
        del found["none", ""]  # a sleep whose waking was missed names nobody
    return found


def _is_woken(rows: np.ndarray[Any, Any], comm: str) -> bool:
    """A disk may take long for the first request."""
    return bool(rows["waker_kind"][rows["comm"] == comm.encode()].any())


@pytest.mark.parametrize(
    ("mode", "sleeper", "partner"), [("pipe", "pipe_a", "pipe_b"), ("futex", "futex_b", "futex_a")]
)
def test_a_partner_thread_is_the_waker(
    scheduler: SchedulerPrograms, start: Start, mode: str, sleeper: str, partner: str
) -> None:
    assert set(_wakers(scheduler, start(mode, 1), sleeper)) == {("thread", partner)}


def test_a_timer_is_no_thread(scheduler: SchedulerPrograms, start: Start) -> None:
    assert set(_wakers(scheduler, start("sleep", 1), "sleep")) == {("timer", "")}


def test_a_disk_is_no_thread(scheduler: SchedulerPrograms, start: Start, tmp_path: Path) -> None:
    assert set(_wakers(scheduler, start("disk", 1, tmp_path / "file"), "disk")) == {("block", "")}


def test_a_kernel_worker_ends_the_chain(scheduler: SchedulerPrograms, start: Start) -> None:
    assert {kind for kind, _ in _wakers(scheduler, start("terminal"), "reader")} == {"kworker"}


def test_on_the_loopback_device_the_peer_is_the_waker(scheduler: SchedulerPrograms, start: Start) -> None:
    found = _wakers(scheduler, start("loopback", PORT), "server")
    assert {(kind, name) for kind, name in found if kind == "thread"} == {("thread", "client")}
    # a softirq that another CPU's ksoftirqd runs late is the network, which is true, too
    assert found["thread", "client"] > SAMPLES / 2


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def _another_host() -> Iterator[tuple[str, str]]:
    """A namespace behind a veth pair; softirqs of the last CPU deliver its packets, as those of a network card."""
    name = f"ingero{os.getpid()}"
    here, there = f"vh{os.getpid()}", f"vt{os.getpid()}"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        _ip("addr", "add", "10.199.7.1/24", "dev", here)
        _ip("link", "set", here, "up")
        _ip("-n", name, "addr", "add", "10.199.7.2/24", "dev", there)
        _ip("-n", name, "link", "set", there, "up")
        last = 1 << ((os.cpu_count() or 1) - 1)
        Path(f"/sys/class/net/{here}/queues/rx-0/rps_cpus").write_text(f"{last:x}")
        yield name, "10.199.7.1"
    finally:
        _ip("netns", "delete", name)


def test_a_packet_from_another_host_is_the_network(scheduler: SchedulerPrograms, start: Start) -> None:
    with _another_host() as (namespace, address):
        server = start("serve", PORT)
        client = start("ask", PORT, address, prefix=("ip", "netns", "exec", namespace, "taskset", "-c", "0"))
        found = _wakers(scheduler, server, "server")
        client.__exit__(None, None, None)
    assert {kind for kind, _ in found} == {"network"}
