"""What every test run shares: where those with real probes can run, skips allowed in CI, time for ends of tests."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Generator
from functools import lru_cache
from pathlib import Path

import pytest

from ingero.discover.kernel import read_kernel
from ingero.discover.readiness import scheduler_clocks

HERE = Path(__file__).parent
ALLOWED_SKIPS = HERE / "allowed_skips.txt"

# What these files compare is time, or needs a machine that is otherwise idle: they run one by one, as do tests of other
# files that are marked `alone`. The others share the cores.
ALONE = frozenset(
    {
        "test_accounts_culprits.py", "test_accounts_sums.py", "test_budget.py", "test_counts.py", "test_demo.py",
        "test_sync_intervals.py", "test_overhead_limiter.py", "test_incidents.py", "test_live_findings.py",
    }
)  # fmt: skip

# Of those that share the cores, what takes longest begins first: else one such file goes on when all others have ended.
LONGEST = (
    "test_trace_options.py", "test_benches.py", "test_faults_of_the_agent_running.py", "test_machine_facts.py",
    "test_faults_of_the_agent.py", "test_library_changes.py", "test_python_stacks.py", "test_nccl.py",
    "test_kernel_names.py", "test_hangs.py", "test_fleet_namespaces.py", "test_hostile_programs.py",
    "test_live_memory.py", "test_live_view.py", "test_admission.py", "test_second_rows.py",
    "test_nccl_modes.py", "test_interpreter_lock.py", "test_progress_marks.py", "test_never_harm.py",
    "test_robustness.py", "test_linked_libraries.py", "test_query.py", "test_process_pickup.py", "test_loading.py",
    "test_sync_interval_shapes.py", "test_block_io.py",
)  # fmt: skip


# After a failure pytest-timeout lets a test go: what cleans up after it and waits for a process that does not end would
# hold up all that come after it. It is interrupted, step by step.
CLEAN_UP_RATIO = 1 / 3  # of the time that a test has
TEST_S = 180.0  # which it has where that is not configured
STEP_S = 20.0


@lru_cache(maxsize=1)
def why_no_integration() -> str:
    """Why tests with real probes cannot run here; empty if they can."""
    if os.geteuid() != 0:
        return "real probes need root: sudo make integration"
    readiness = scheduler_clocks(read_kernel())
    if not readiness.ok:
        return f"{readiness.reason}; {readiness.fix}"
    return "" if shutil.which("gcc") else "the simulated GPU needs a compiler: apt-get install gcc libc6-dev"


@pytest.fixture(scope="session", autouse=True)
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """The lock of the agents that tests start: test runs beside this one, and the machine's own agent, have another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGERO_RUN_DIR", str(tmp_path_factory.mktemp("run")))
        yield


@pytest.fixture(scope="session", autouse=True)
def hang_up() -> None:
    """Programs that tests start end at a SIGHUP, also where the tests run under nohup, which turns it off for all."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer() -> Generator[None, object, object]:
    """A test whose time is over is interrupted again where it waits for something else then."""
    result = yield
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, left_s, STEP_S)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """The end of a test has a time of its own, however the test ended."""

    limit_s = float(item.config.getini("timeout") or TEST_S) * CLEAN_UP_RATIO

    def interrupt(*_: object) -> None:
        pytest.fail(f"the end of {item.name} takes more than {limit_s:g} s")

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s, STEP_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies under `integration/`, skips it where it cannot run, and puts the longest files first."""
    begins = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: begins.get(item.path.name, len(LONGEST)) if is_integration(item) else -1)
    for item in items:
        if is_integration(item):
            item.add_marker(pytest.mark.integration)
            if item.path.name in ALONE:
                item.add_marker(pytest.mark.alone)
            if why_no_integration():
                item.add_marker(pytest.mark.skip(reason=why_no_integration()))


def is_integration(item: pytest.Item) -> bool:
    """Whether it is a test with real probes."""
    return HERE / "integration" in item.path.parents


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skip that nobody allowed is a failure."""
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """As for tests: a module may skip as a whole."""
    report = yield
    _judge(report)
    return report


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    is_skip = report.outcome == "skipped" and not hasattr(report, "wasxfail")
    if os.environ.get("CI") != "true" or not is_skip or not isinstance(report.longrepr, tuple):
        return
    skip = f"{report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}"
    if not is_allowed(skip, ALLOWED_SKIPS.read_text(encoding="utf-8")):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, which {ALLOWED_SKIPS.name} does not allow:\n{skip}"


def is_allowed(skip: str, allowed: str) -> bool:
    """Whether a line `nodeid: reason` is allowed; `*` in the file stands for any text, `#` begins a comment line."""
    lines = [line for line in allowed.splitlines() if line and not line.startswith("#")]
    return any(re.fullmatch(re.escape(line).replace(r"\*", ".*"), skip, re.DOTALL) for line in lines)
