"""A Prometheus server of the tests' own, and its tool for checking configurations."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

UNPACKED = Path(__file__).resolve().parents[1] / "build" / "prometheus" / "usr" / "bin"  # by tools/setup.sh


def program(name: str) -> str:
    """Where `prometheus` or `promtool` is; empty if it is not here."""
    return shutil.which(name) or shutil.which(name, path=str(UNPACKED)) or ""


needs_prometheus = pytest.mark.skipif(
    not program("prometheus"), reason="no Prometheus: `make setup` fetches it where there is apt-get"
)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    url: str

    def query(self, expression: str, at_s: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series at a time (unix s), or now."""
        answer = self._ask("query", query=expression, **({} if at_s is None else {"time": f"{at_s:.3f}"}))
        return [(one["metric"], float(one["value"][1])) for one in answer["result"]]

    def label_values(self, name: str, series: str) -> list[str]:
        """What Grafana asks to fill a variable."""
        values: list[str] = self._ask(f"label/{name}/values", **{"match[]": series})
        return values

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=30) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def _ask(self, what: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]


@contextmanager
def serving(configuration: Path) -> Iterator[Prometheus]:
    """A server with this configuration; its data lie beside it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [f"--config.file={configuration}", f"--storage.tsdb.path={configuration.parent / 'data'}"]
    arguments += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    log = configuration.with_suffix(".log")
    with log.open("w") as file, subprocess.Popen([program("prometheus"), *arguments], stderr=file) as process:
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            while not server.is_ready():
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()
