"""Nodes of a fleet that really listen: dashboards with certificates of an authority of the test's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ingero.demo.scene import ScriptedRun, Step
from ingero.fleet.access import Access
from ingero.fleet.authority import IssuedCertificate, make_authority, make_certificate
from ingero.fleet.node_lists import Node
from ingero.fleet.relay_server import RelayService
from ingero.serve.dashboard.exposure import Exposure
from ingero.serve.dashboard.server import answering_to, certificate_of, create_server, server_context
from ingero.serve.http.addresses import Address, listen
from ingero.serve.recording_source import RecordingSource
from ingero.store.writing import tables

NOW = datetime.now(timezone.utc)
SECONDS = 12


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority and what it signs, in a folder."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate."""
        return self.folder / "ca.pem"

    def make(
        self, name: str, *names: str, is_server: bool = True, now: datetime = NOW, days: int = 30
    ) -> IssuedCertificate:
        """A node's certificate, or a client's, for these names; for 127.0.0.1 where none is given."""
        return make_certificate(
            self.folder, name, names=names or ("127.0.0.1",), is_server=is_server, days=days, replaces=True, now=now
        )

    def client(self, name: str = "client") -> Access:
        """A client that nodes of this authority believe."""
        made = self.make(name, name, is_server=False)
        return Access(ca_cert=self.ca, client_cert=made.certificate, client_key=made.key)


def make_certificates(folder: Path) -> Certificates:
    """A new authority."""
    make_authority(folder, name=f"authority of {folder.name}", now=NOW - timedelta(days=60))
    return Certificates(folder)


def record_node(
    path: Path, node: str, *, is_late: bool = False, machine_id: str = "", begin_mono_ns: int | None = None
) -> Path:
    """Records a trainer on a node; is_late: another process takes its CPU from the middle on.

    begin_mono_ns: start of the recording by CLOCK_MONOTONIC of this boot of this host; None: the boot is unknown.
    """
    boot_id = "" if begin_mono_ns is None else Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with ScriptedRun(path, seconds=SECONDS, node=node, machine_id=machine_id, boot_id=boot_id) as run:
        for second in (0, SECONDS // 2, SECONDS) if begin_mono_ns is not None else ():
            mono_ns = (begin_mono_ns or 0) + second * 10**9
            run.append(tables.CLOCK_PAIRS, mono_ns=mono_ns, unix_ns=run.at(second), suspended_ns=0)
        trainer = run.process(100, "python", rank=0, cmdline="python train.py")
        middle = SECONDS // 2
        run.train(trainer, 0, middle, Step())
        late = Step(return_delay_ms=6, sync={"sleep": 5, "runq": 6}) if is_late else Step()
        run.train(trainer, middle, SECONDS, late)
        for second in range(middle, SECONDS) if is_late else ():
            run.culprit(trainer, 900, "hog", second, 380, switches=400)
        for call in range(4):
            run.call(trainer, "cudaStreamSynchronize", 1 + call, 6.0)
            run.call(trainer, "cudaLaunchKernel", 1.5 + call, 0.1)
    return path


@contextmanager
def serving_node(
    path: Path, *, made: IssuedCertificate | None = None, client_ca: Path | None = None, token: str = "",
    has_tls: bool = True, clock: Callable[[], int] = time.time_ns, relay: RelayService | None = None,
) -> Iterator[Node]:  # fmt: skip
    """A node's server on a free port of this machine, at 127.0.0.1. clock: what the node takes for unix ns.

    relay: it also asks others.
    """
    listening = listen(Address("127.0.0.1", 0))
    address = Address("127.0.0.1", listening.getsockname()[1])
    exposure = Exposure(
        address=address,
        has_tls=has_tls,
        certificate=made.certificate if made else None,
        key=made.key if made else None,
        client_ca=client_ca,
        token=token,
    )
    source = RecordingSource(path, may_lag=True, clock=clock)
    context = None
    if has_tls:
        certificate = certificate_of(exposure)
        context = server_context(exposure, certificate)
        exposure = answering_to(exposure, certificate)
    server = create_server(source, exposure, context, relay.add_to if relay else lambda _: None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Node("127.0.0.1", address.port)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        source.close()


@contextmanager
def serving_fleet(folder: Path, certificates: Certificates, names: Sequence[str]) -> Iterator[list[Node]]:
    """A node of each name, the first of them late, which let in only clients of the authority."""
    made = certificates.make("node")
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                serving_node(
                    record_node(folder / f"{name}.db", name, is_late=place == 0), made=made, client_ca=certificates.ca
                )
            )
            for place, name in enumerate(names)
        ]
