"""The figures that a row prints, and the nodes, commands and digests that rows share."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from ingero.cli.main import cli
from ingero.fleet.access import Access
from ingero.fleet.node_lists import Node
from tests.unit.fleet_nodes import Certificates, make_certificates, record_node, serving_node


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its bar."""

    text: str
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Nodes that listen, with the recordings that they serve and the certificates that they believe."""

    folder: Path
    certificates: Certificates
    client: Access
    paths: tuple[Path, ...]
    nodes: tuple[Node, ...]

    def digests(self) -> dict[str, str]:
        """SHA-256 of each database and of its log."""
        files = [file for path in self.paths for file in (path, path.with_name(f"{path.name}-wal")) if file.exists()]
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


Measure = Callable[[Path], Iterator[Figure]]


@contextmanager
def serving(folder: Path, names: Sequence[str]) -> Iterator[Fleet]:
    """Nodes of these names, the first of them slow."""
    certificates = make_certificates(folder / "certificates")
    made = certificates.make("node")
    paths = tuple(record_node(folder / f"{name}.db", name, is_late=place == 0) for place, name in enumerate(names))
    with ExitStack() as stack:
        nodes = tuple(stack.enter_context(serving_node(path, made=made, client_ca=certificates.ca)) for path in paths)
        yield Fleet(folder=folder, certificates=certificates, client=certificates.client(), paths=paths, nodes=nodes)


def shown(access: Access) -> list[str]:
    """The options that say who asks."""
    pairs = {"--ca-cert": access.ca_cert, "--client-cert": access.client_cert, "--client-key": access.client_key}
    found = [word for option, path in pairs.items() if path is not None for word in (option, str(path))]
    return found if access.has_tls else ["--no-tls"]


def listed(nodes: Sequence[Node]) -> str:
    """The nodes as the value of --nodes."""
    return ",".join(node.authority for node in nodes)


def run(*words: str) -> Result:
    """A command, in this process."""
    return CliRunner().invoke(cli, list(words))


def said(done: Result) -> str:
    """The output of a command, including its error."""
    return done.output + (f"{done.exception} {getattr(done.exception, 'hint', '')}" if done.exception else "")


@dataclass(frozen=True, slots=True)
class Done:
    """A command as a process of its own."""

    code: int
    stdout: str
    stderr: str
    wall_s: float
    rss_mb: float


_MEASURED = """
import os, sys
from ingero.cli.main import main
report = int(sys.argv.pop(1))
try:
    main()
finally:
    os.write(report, next(line.split()[1] for line in open("/proc/self/status", "rb") if line.startswith(b"VmHWM")))
"""


def run_alone(*words: str) -> Done:
    """A command as a process of its own, with what it cost.

    Its memory is asked of itself: what wait4 says of a child holds what its parent had when it forked.
    """
    begin_s = time.monotonic()
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as report:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, str(write_end), *words],
            capture_output=True, text=True, check=False, pass_fds=(write_end,),
        )  # fmt: skip
        os.close(write_end)
        rss_kib = int(report.read())
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - begin_s, rss_kib / 1024)
