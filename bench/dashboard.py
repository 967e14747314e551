"""How long the dashboard's API takes under twenty readers on a large recording that is being written, and first paint.

Makes a recording of made-up rows (bench.export) and opens its page in Chromium, where there is one, on a server that
has just begun, so that its diagnosis is still under way: that is how long one waits for the overview's numbers, and for
the verdict. Then it serves the file from a process of its own, and lets twenty readers ask every address of the page in
turn, while a writer commits twice a second. Answers are kept while they are fresh (docs/adr/0033-dashboard.md), so both
are shown: the first answer of each address, which one reader waits for, and all of them.

Run: python -m bench.dashboard [--events N] [--seconds S] [--short] [--json]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import apsw

from bench.export import make_recording

READERS = 20
_PATHS = (
    *("overview", "incidents", "ops", "processes", "snapshots", "drops", "chains", "capabilities", "graph-metrics"),
    *("graph-events", "time", "clocks?process=1", "facts", "nccl", "memory", "containers"),
    *("time-chart", "time-chart?lost=true"),
)
_PAUSE_S = 0.25  # of a reader between two questions
_SERVE = """
import sys
from pathlib import Path
from ingero.serve.http.addresses import Address, listen
from ingero.serve.dashboard.exposure import Exposure
from ingero.serve.dashboard.server import serve
from ingero.serve.recording_source import RecordingSource
listening = listen(Address("127.0.0.1", 0))
address = Address("127.0.0.1", listening.getsockname()[1])
print(address.port, flush=True)
serve(RecordingSource(Path(sys.argv[1]), may_lag=True), Exposure(address=address, has_tls=False), listening, None)
"""


# Notes in the page when its overview has numbers, and when its verdict is there; each with the frame that paints it.
_WATCH = """
window.seen = {};
const look = () => {
  for (const [name, there] of [["useful", ".facts dd"], ["verdict", ".verdict:not([aria-busy]) h2"]])
    if (!(name in window.seen) && document.querySelector(there))
      requestAnimationFrame(() => { window.seen[name] ??= performance.now(); });
};
new MutationObserver(look).observe(document, { childList: true, subtree: true, attributes: true });
"""
# The exact sums that a recorder keeps beside the calls.
_TOTALS = """
INSERT INTO raw_op_stats(session, start_ns, process, source, op, count, recorded, sum_ns, max_ns, bytes)
SELECT session, start_ns / 1000000000 * 1000000000, process, source, op, count(*), count(*), sum(duration_ns),
    max(duration_ns), sum(arg0) FROM raw_events GROUP BY 1, 2, 3, 4, 5
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The page opened on a server that has just begun. useful_ms: until its overview has numbers, from the navigation.

    cpu_s: of the server, from its begin to the verdict. load: of the machine, over the minute before.
    """

    paint_ms: float
    useful_ms: float
    verdict_ms: float
    cpu_s: float
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """first_ms: the first answer of each address, nobody else asking. opening: None without Chromium."""

    events: int
    file_bytes: int
    answers: int
    errors: int
    p50_ms: float
    p95_ms: float
    max_ms: float
    first_ms: dict[str, float]
    opening: Opening | None


def ask(port: int, path: str) -> tuple[float, int]:
    """Milliseconds and status of one question."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", f"/api/v1/{path}")
    response = connection.getresponse()
    response.read()
    connection.close()
    return (time.perf_counter() - began) * 1e3, response.status


def read(port: int, reader: int, end: float, found: list[tuple[float, int]]) -> None:
    """One reader, who begins at an address of their own."""
    number = reader
    while time.monotonic() < end:
        found.append(ask(port, _PATHS[number % len(_PATHS)]))
        number += 1
        time.sleep(_PAUSE_S)


def write(path: Path, end: float) -> None:
    """Commits twice a second, as a recorder does."""
    db = apsw.Connection(str(path))
    db.set_busy_timeout(10_000)
    while time.monotonic() < end:
        with db:
            db.execute("UPDATE raw_sessions SET last_seen_ns = last_seen_ns + 500000000")
        time.sleep(0.5)
    db.close()


def serving(path: Path) -> tuple[subprocess.Popen[str], int]:
    """A server of its own and its port."""
    server = subprocess.Popen([sys.executable, "-c", _SERVE, str(path)], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    return server, int(server.stdout.readline())


def opening(path: Path) -> Opening | None:
    """None without Chromium."""
    if shutil.which("chromium") is None:
        return None
    from tests.browser.chromium import Browser  # noqa: PLC0415  # only where there is one

    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
    with Browser() as browser:
        browser.run_first(_WATCH)
        server, port = serving(path)
        try:
            browser.open(f"http://127.0.0.1:{port}/")
            browser.wait_for(lambda: bool(browser.evaluate("window.seen?.useful && window.seen.verdict")), "verdict")
            spent = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
            return Opening(
                paint_ms=float(browser.evaluate(paint)),
                useful_ms=float(browser.evaluate("window.seen.useful")),
                verdict_ms=float(browser.evaluate("window.seen.verdict")),
                cpu_s=(int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK"),
                load=os.getloadavg()[0],
            )
        finally:
            server.terminate()
            server.wait()


def measure(path: Path, events: int, seconds: float) -> Result:
    """Serves the file and asks."""
    opened = opening(path)
    server, port = serving(path)
    try:
        first = {name: ask(port, name)[0] for name in _PATHS}
        found: list[tuple[float, int]] = []
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=read, args=(port, number, end, found)) for number in range(READERS)]
        threads.append(threading.Thread(target=write, args=(path, end)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        server.terminate()
        server.wait()
    times = sorted(ms for ms, _ in found)
    return Result(
        events=events,
        file_bytes=path.stat().st_size,
        answers=len(times),
        errors=sum(status >= 400 for _, status in found),
        p50_ms=statistics.median(times),
        p95_ms=times[int(0.95 * len(times))],
        max_ms=times[-1],
        first_ms=first,
        opening=opened,
    )


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=5_000_000, help="calls in the recording (default 5,000,000)")
    parser.add_argument("--seconds", type=float, default=20, help="how long the readers ask (default 20)")
    parser.add_argument("--short", action="store_true", help="a small recording, for tests")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(arguments)
    events, seconds = (20_000, 1.0) if options.short else (options.events, options.seconds)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "large.db"
        make_recording(path, events)
        db = apsw.Connection(str(path))
        db.execute(_TOTALS)
        db.close()
        result = measure(path, events, seconds)
    if options.json:
        print(json.dumps(asdict(result)))
        return
    print(f"{events:,} calls, {result.file_bytes / 2**20:,.0f} MiB; {READERS} readers, one writer")
    print(f"  {result.answers:,} answers, {result.errors} errors: p50 {result.p50_ms:.1f} ms", end="")
    print(f", p95 {result.p95_ms:.1f} ms, longest {result.max_ms:.0f} ms")
    for name, ms in sorted(result.first_ms.items(), key=lambda item: -item[1]):
        print(f"  first answer of {name:20}{ms:10.1f} ms")
    if result.opening is not None:
        seen = result.opening
        print(f"  first contentful paint {seen.paint_ms:.0f} ms, numbers {seen.useful_ms:.0f} ms", end="")
        print(f", verdict {seen.verdict_ms:.0f} ms; server {seen.cpu_s:.2f} s CPU, load {seen.load:.1f}")


if __name__ == "__main__":
    main()
