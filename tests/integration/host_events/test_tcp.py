"""Retransmits against the kernel's own counters, and bytes of sockets."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from ingero.attach.host_events import missing_tracepoints
from tests.integration.host_events.conftest import Tracer, Workload

pytestmark = pytest.mark.integration
PORT = 7777
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
FAMILIES = [pytest.param(socket.AF_INET, id="v4"), pytest.param(socket.AF_INET6, id="v6")]


@pytest.fixture
def counts_bytes() -> None:
    if "sock_send_length" in missing_tracepoints():
        pytest.skip("this kernel has no sock_send_length (Linux 6.3)")


def retransmitted_segments(namespace: str) -> int:
    """RetransSegs of a network namespace, both IP versions."""
    command = ["ip", "netns", "exec", namespace, "cat", "/proc/net/snmp"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(dict(zip(names, values, strict=True))["RetransSegs"])


def drop_every_twentieth(namespace: str, family: socket.AddressFamily) -> None:
    """Loses one data packet in twenty on its way in."""
    tables = {socket.AF_INET: "iptables", socket.AF_INET6: "ip6tables"}[family]
    if shutil.which(tables) is None:
        pytest.skip(f"{tables} is not installed: apt-get install iptables")
    rule = f"-A INPUT -p tcp --dport {PORT} -m statistic --mode nth --every 20 --packet 10 -j DROP"
    done = subprocess.run(
        ["ip", "netns", "exec", namespace, tables, *rule.split()], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"this kernel refuses the {tables} rule: {done.stderr.strip()}")


def lossy_transfer(
    tracer: Tracer, workload: Callable[..., Workload], name: str, family: socket.AddressFamily, *, is_traced: bool
) -> tuple[Workload, int]:
    """Sends 4 MiB where packets are lost; returns the sender and its port."""
    drop_every_twentieth(name, family)
    inside = ("ip", "netns", "exec", name)
    server = workload("serve", int(family), PORT, prefix=inside)
    server.begin()
    assert server.line() == "listening"
    client = workload("send", int(family), LOOPBACK[family], PORT, 4 << 20, prefix=inside)
    if is_traced:
        tracer.track(client.pid)
    port = client.run()["port"]
    assert server.result()["bytes"] == 4 << 20
    return client, port


@pytest.mark.parametrize("family", FAMILIES)
def test_retransmitted_segments_equal_the_kernels_count(
    tracer: Tracer,
    workload: Callable[..., Workload],
    namespace: str,
    family: socket.AddressFamily,
) -> None:
    before = retransmitted_segments(namespace)
    lossy_transfer(tracer, workload, namespace, family, is_traced=True)
    grown = retransmitted_segments(namespace) - before
    records = tracer.records("TCP_RETRANSMIT")
    ours = records[(records["arg0"] & 0xFFFF == PORT) | (records["arg0"] >> 16 == PORT)]
    assert grown > 0
    assert (ours["arg1"] >> 16).sum() == grown


@pytest.mark.parametrize("family", FAMILIES)
def test_a_retransmit_names_the_connection_and_the_target_that_owns_it(
    tracer: Tracer,
    workload: Callable[..., Workload],
    namespace: str,
    family: socket.AddressFamily,
) -> None:
    client, port = lossy_transfer(tracer, workload, namespace, family, is_traced=True)
    records = tracer.records("TCP_RETRANSMIT")
    sent = records[records["arg0"] == port << 16 | PORT]
    mapped = {socket.AF_INET: "::ffff:127.0.0.1", socket.AF_INET6: "::1"}[family]
    assert len(sent)
    assert bytes(sent["address"][0]) == 2 * ip_address(mapped).packed
    assert set(sent["pid"]) == {client.pid}
    assert tracer.total("TCP_RETRANSMIT")["traced_count"] > 0


def test_retransmits_of_a_process_that_is_no_target_have_no_owner(
    tracer: Tracer, workload: Callable[..., Workload], namespace: str
) -> None:
    lossy_transfer(tracer, workload, namespace, socket.AF_INET, is_traced=False)
    records = tracer.records("TCP_RETRANSMIT")
    ours = records[records["arg0"] & 0xFFFF == PORT]
    assert len(ours)
    assert set(ours["pid"]) == {0}
    assert set(ours["process_slot"]) == {0xFFFF}


@pytest.mark.usefixtures("counts_bytes")
def test_sent_and_received_bytes_of_a_target_are_exact_and_peeking_does_not_count(
    tracer: Tracer, workload: Callable[..., Workload]
) -> None:
    program = workload("exchange", 300, 7001)
    tracer.track(program.pid)
    result = program.run()
    process = tracer.process(program.pid)
    assert (process["net_sent_bytes"], process["net_received_bytes"]) == (300 * 7001, 300 * 7001)
    assert (process["net_sends"], process["net_receives"]) == (300, result["receives"])
    total = tracer.total("NET_SEND")
    assert (total["traced_count"], total["traced_bytes"], total["other_bytes"]) == (300, 300 * 7001, 0)


@pytest.mark.usefixtures("counts_bytes")
def test_the_first_send_on_a_socket_is_recorded_with_its_ends(
    tracer: Tracer, workload: Callable[..., Workload]
) -> None:
    program = workload("exchange", 3, 100)
    tracer.track(program.pid)
    ports = program.run()
    records = tracer.records("NET_SEND")
    assert records["arg0"][0] == ports["sender"] << 16 | ports["receiver"]
    assert records["size_bytes"][0] == 100
    assert records["arg1"][0] == socket.AF_INET | 1 << 16
    assert bytes(records["address"][0]) == 2 * ip_address("::ffff:127.0.0.1").packed


@pytest.mark.alone  # retransmits of anybody are recorded
def test_sockets_of_a_process_that_is_no_target_leave_no_record(
    tracer: Tracer, workload: Callable[..., Workload]
) -> None:
    workload("exchange", 3, 100).run()
    assert not len(tracer.records("TCP_RETRANSMIT", "NET_SEND", "NET_RECEIVE"))
    assert tracer.total("NET_SEND")["traced_count"] == 0


def test_a_closed_connection_is_forgotten(tracer: Tracer, workload: Callable[..., Workload]) -> None:
    program = workload("exchange", 3, 100)
    tracer.track(program.pid)
    program.run()
    assert not list(tracer.events.maps["socket_owners"].items())
