"""How long a scrape takes, how large it is and how many series it holds, at the cardinality of real jobs.

Each operation is called from eight places a second; its durations fill every octave. A push of the same sums stands
beside it, as it is encoded (it is sent in a thread that nobody waits for). On a busy machine look at the CPU time; the
scraper's is in it, too.

Run: python -m bench.metrics [--rounds N] [--short] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np

from ingero.capture.loop.drops import MEANINGS
from ingero.capture.loop.period import period_until
from ingero.capture.loop.second import SecondOfCounts
from ingero.capture.sums.cells import CellGrowth
from ingero.diagnose.causes.rule import all_rules
from ingero.discover.gpus import Gpu, GpuSample
from ingero.discover.system import Pressure, SystemSample
from ingero.ops import OPS, Op
from ingero.serve.http.addresses import Address
from ingero.serve.metrics.intake import Intake
from ingero.serve.metrics.otlp import as_request
from ingero.serve.metrics.registry import Registry
from ingero.serve.metrics.scrapes import Scrapes
from ingero.store import histograms
from ingero.store.vocabulary import STATES
from ingero.units import SECOND_NS

SCRAPE_MS = 20  # what is promised for the 95th percentile, on a machine that has nothing else to do
_SIZES = {
    "a training loop (4 operations, 1 GPU)": (4, 1),
    "a job of many libraries (40 operations, 8 GPUs)": (40, 8),
    f"every operation there is ({len(OPS)}, 8 GPUs)": (len(OPS), 8),
}
_PLACES, _SECONDS = 8, 10
_GROWTH = np.dtype([("count", "u8"), ("errors", "u8"), ("nested", "u8"), ("size_bytes", "u8"), ("sum_ns", "u8")])


def _cells(op: Op) -> list[CellGrowth]:
    durations_ns = np.random.default_rng(op.id).lognormal(11, 3, 1_000).astype(np.int64) + 1
    growth = np.array([(len(durations_ns), 1, 1, 4096, durations_ns.sum())], _GROWTH)[0]
    counts, longest_ns = histograms.count(durations_ns).astype(np.uint32), int(durations_ns.max())
    return [
        CellGrowth(slot=0, op=op.id, caller=place, growth=growth, row=0, max_ns=longest_ns, histogram=counts)
        for place in range(_PLACES)
    ]


def _gpu(index: int) -> tuple[Gpu, GpuSample]:
    uuid = f"GPU-{index}"
    gpu = Gpu(index=index, uuid=uuid, name="H", memory_bytes=80 << 30, pci_bus_id="", max_sm_clock_mhz=1980)
    sample = GpuSample(
        uuid=uuid, busy_percent=90, memory_busy_percent=40, memory_used_bytes=60 << 30, sm_clock_mhz=1980,
        slowdowns=(), power_w=650.0, temperature_c=60, processes={}, memory_total_bytes=80 << 30, throttle_reasons=0,
    )  # fmt: skip
    return gpu, sample


def _second(op_count: int, gpu_count: int) -> SecondOfCounts:
    waits = Pressure(some_avg10_percent=1, some_total_us=10**6, full_avg10_percent=0, full_total_us=10**5)
    return SecondOfCounts(
        period=period_until(10**18, SECOND_NS),
        traced_processes=8,
        threads=200,
        cells=[cell for op in OPS[:op_count] for cell in _cells(op)],
        states_ns=np.full(len(STATES), 10**8, np.int64),
        culprit_times=[],
        drops={},
        in_flight=0,
        system=SystemSample(
            cpu_percent=50.0, mem_percent=50.0, mem_total_bytes=1 << 40, mem_available_bytes=1 << 39, swap_used_bytes=0,
            load_avg=(8.0, 8.0, 8.0), pressure={"cpu": waits, "io": waits, "memory": waits}, throttling={},
        ),
        gpus=tuple(_gpu(index) for index in range(gpu_count)),
    )  # fmt: skip


def _ms(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    action()
    return (clock() - began) * 1e3


def _scrape(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        page: bytes = answer.read()
    return page


def measure(op_count: int, gpu_count: int, rounds: int, *, with_old_names: bool) -> dict[str, float]:
    """Measures one row of the table."""
    registry = Registry()
    intake = Intake(registry, MEANINGS, {rule.cause for rule in all_rules()})
    second = _second(op_count, gpu_count)
    sums_ms = [_ms(lambda: intake.second(second), time.process_time) for _ in range(_SECONDS)]
    with Scrapes(Address("127.0.0.1", 0), registry, with_old_names=with_old_names) as scrapes:
        page = _scrape(scrapes.url)
        scrape_ms = sorted(_ms(lambda: _scrape(scrapes.url)) for _ in range(rounds))
        cpu_ms = [_ms(lambda: _scrape(scrapes.url), time.process_time) for _ in range(rounds)]
        page_ms = [_ms(scrapes.page, time.thread_time) for _ in range(rounds)]
    pushed = [as_request(registry.read(), node="n", began_ns=1, now_ns=2, is_explicit=kind) for kind in (False, True)]
    return {
        "series": sum(not line.startswith(b"#") for line in page.splitlines()),
        "bytes": len(page),
        "scrape_p50_ms": statistics.median(scrape_ms),
        "scrape_p95_ms": scrape_ms[int(0.95 * (len(scrape_ms) - 1))],
        "scrape_cpu_ms": statistics.median(cpu_ms),  # of both sides
        "page_cpu_ms": statistics.median(page_ms),  # of that, to make the page
        "second_cpu_ms": statistics.median(sums_ms),
        "push_bytes": pushed[0].ByteSize(),
        "push_octaves_bytes": pushed[1].ByteSize(),
    }


def print_text(result: dict[str, dict[str, float]]) -> None:
    """The table."""
    print(f"scrape p95 promised: {SCRAPE_MS} ms")
    for title, row in result.items():
        print(
            f"{title}:\n  {row['series']:,.0f} series, {row['bytes'] / 1e3:,.0f} kB, scraped in "
            f"{row['scrape_p50_ms']:.1f} ms (p95 {row['scrape_p95_ms']:.1f}, CPU {row['scrape_cpu_ms']:.1f}, "
            f"of that the page {row['page_cpu_ms']:.2f})\n  "
            f"{row['second_cpu_ms']:.1f} ms of CPU to sum up a second; a push is {row['push_bytes'] / 1e3:,.0f} kB, "
            f"with buckets per octave {row['push_octaves_bytes'] / 1e3:,.0f} kB"
        )


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--short", action="store_true", help="few rounds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rounds = 5 if options.short else options.rounds
    result: dict[str, Any] = {title: measure(*size, rounds, with_old_names=False) for title, size in _SIZES.items()}
    title, size = list(_SIZES.items())[1]
    result[f"{title}, with --metrics-compat"] = measure(*size, rounds, with_old_names=True)
    print(json.dumps(result)) if options.json else print_text(result)


if __name__ == "__main__":
    main()
