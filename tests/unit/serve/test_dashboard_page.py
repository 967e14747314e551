"""The page in a real browser: what it says, keys, links that survive a reload, and that nothing leaves the host."""

from __future__ import annotations

import csv
import io
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ingero.demo.labeled_scenarios import SCENARIOS, record
from ingero.demo.scene import ScriptedRun, Step
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Diagnosis
from ingero.events import STATE_COLUMNS
from ingero.serve.dashboard.app import PAGE
from ingero.serve.dashboard.exposure import Exposure
from ingero.store.reader import Reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing.writer import Writer
from tests.browser.chromium import Browser, is_installed
from tests.unit.dashboard_recording import END_S, make_detailed, make_recording, serving

TOKEN = "0123456789abcdef0123456789abcdef"
# Addresses that name a format; nobody asks for them.
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML", "http://www.w3.org/1999/xhtml"}
NAMESPACES |= {"http://www.w3.org/1999/xlink", "http://www.w3.org/XML/1998/namespace"}
WITH_BROWSER = pytest.mark.skipif(not is_installed(), reason="chromium is not installed (apt-get install chromium)")
pytestmark = pytest.mark.skipif(not (PAGE / "index.html").exists(), reason="the page is not built (make build)")


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposure]:
    with serving(make_recording(tmp_path_factory.mktemp("page") / "recording.db")) as exposure:
        yield exposure


@pytest.fixture(scope="module")
def detailed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposure]:
    with serving(make_detailed(tmp_path_factory.mktemp("detailed") / "recording.db")) as exposure:
        yield exposure


@pytest.fixture(scope="module")
def allocating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposure]:
    path = tmp_path_factory.mktemp("allocating") / "recording.db"
    record(SCENARIOS["allocations"], path)
    with serving(path) as exposure:
        yield exposure


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


def show(browser: Browser, url: str) -> None:
    """Goes there as one who comes from elsewhere: a change after # alone loads nothing."""
    browser.open("about:blank")
    browser.open(url)


def test_the_page_names_no_address_elsewhere() -> None:
    texts = {path: path.read_text() for path in PAGE.rglob("*") if path.is_file()}
    named = {(path.name, url) for path, text in texts.items() for url in re.findall(r"https?://[^\s\"'`)]+", text)}
    assert {one for one in named if one[1] not in NAMESPACES} == set()


@WITH_BROWSER
def test_the_verdict_comes_first_and_nothing_leaves_the_host(browser: Browser, dashboard: Exposure) -> None:
    show(browser, dashboard.url)
    browser.wait_for_text("incidents: 2 HIGH")
    assert browser.evaluate("document.querySelector('h2').innerText") == "2 incidents: 2 HIGH"
    assert "lost" in str(browser.evaluate("document.querySelector('.card h3').innerText"))
    assert {urlsplit(url).netloc for url in browser.requests if url != "about:blank"} == {
        f"127.0.0.1:{dashboard.address.port}"
    }
    assert browser.complaints == []


@WITH_BROWSER
@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("#/incidents", "sync return delay: runnable (waiting for a CPU)"),
        ("#/ops", "cudaStreamSynchronize"),
        ("#/ops?process=1", "cudaLaunchKernel"),
        ("#/processes", "sync return delay"),
        ("#/processes/1", "Thread-state time (100%: one thread)"),
        ("#/host", "Pressure"),
        ("#/drops", "sync intervals dropped"),
        ("#/detections/cpu-contention", "Evidence"),
        ("#/nowhere", "incidents: 2 HIGH"),
    ],
)
def test_a_link_leads_to_its_view_also_after_a_reload(
    browser: Browser, dashboard: Exposure, place: str, text: str
) -> None:
    show(browser, dashboard.url + place)
    browser.wait_for_text(text)
    browser.reload()
    browser.wait_for_text(text)
    assert str(browser.evaluate("location.hash")) == place
    assert browser.complaints == []


@WITH_BROWSER
@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("#/nccl", "10 (100%)"),
        ("#/memory", "Allocations that failed"),
        ("#/containers", "train-1"),
        ("#/stacks", "no stack was stored"),
        ("#/stacks/1?of=samples", "[sleep]"),
        ("#/stacks/1?at=train.py%3A90+in+main%0Adata.py%3A12+in+fetch", "Show all frames"),
        ("#/stacks/2?since=5m", "ncclAllReduce"),
    ],
)
def test_a_link_leads_to_a_detail_also_after_a_reload(
    browser: Browser, detailed: Exposure, place: str, text: str
) -> None:
    show(browser, detailed.url + place)
    browser.wait_for_text(text)
    browser.reload()
    browser.wait_for_text(text)
    assert str(browser.evaluate("location.hash")) == place
    assert browser.complaints == []


@WITH_BROWSER
def test_a_recorded_call_leads_to_its_stack(browser: Browser, detailed: Exposure) -> None:
    show(browser, f"{detailed.url}#/stacks/1")
    browser.wait_for_text("The longest recorded calls")
    browser.evaluate("document.querySelector('td a[href*=\"stack=\"]').click()")
    browser.wait_for_text("/srv/train/model.py:31")


@WITH_BROWSER
def test_an_incident_leads_to_its_python_and_native_stacks_also_after_a_reload(
    browser: Browser, allocating: Exposure
) -> None:
    show(browser, f"{allocating.url}#/incidents/1")
    browser.wait_for_text("at::native::call")
    assert "train_step" in browser.text()
    browser.evaluate("document.querySelector('a[href*=\"#/stacks/\"]').click()")
    for _ in range(2):
        browser.wait_for_text("Show any time, any line.")
        browser.wait_for_text("The longest recorded calls")
        assert browser.evaluate(
            "[...document.querySelectorAll('tbody th a')].every((one) => one.innerText == 'cudaMalloc')"
        )
        browser.reload()
    assert browser.complaints == []


@WITH_BROWSER
def test_an_operation_leads_to_its_recorded_calls(browser: Browser, detailed: Exposure) -> None:
    show(browser, f"{detailed.url}#/ops")
    browser.wait_for_text("ncclAllReduce")
    browser.evaluate("document.querySelector('a[href*=\"op=ncclAllReduce\"]').click()")
    browser.wait_for_text("Only those of ncclAllReduce.")
    browser.wait_for_text("in all ncclAllReduce")


@WITH_BROWSER
def test_an_incident_shows_its_course_and_what_its_affected_noticed(browser: Browser, dashboard: Exposure) -> None:
    show(browser, f"{dashboard.url}#/incidents/1")
    browser.wait_for_text("syncs/s")
    assert "By thread state" in browser.text()
    assert int(browser.evaluate("document.querySelectorAll('.course .bar').length")) > 10


@WITH_BROWSER
def test_what_was_recorded_is_shown_before_the_verdict_is_known(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    def slow(reader: Reader, window: Window) -> Diagnosis:
        may_end.wait()
        return diagnose(reader, window)

    monkeypatch.setattr("ingero.diagnose.diagnosis.diagnose", slow)
    with serving(make_recording(tmp_path / "recording.db")) as exposure:
        try:
            show(browser, exposure.url)
            browser.wait_for_text("Looking for stalls")
            assert "306,9" in browser.text()  # calls
        finally:
            may_end.set()
        browser.wait_for_text("incidents: 2 HIGH")


@WITH_BROWSER
def test_the_first_screen_is_a_picture_with_the_worst_incident_and_its_fix(
    browser: Browser, dashboard: Exposure
) -> None:
    show(browser, dashboard.url)
    browser.wait_for_text("lost: CPU throttled")
    text = browser.text()
    assert int(browser.evaluate("document.querySelectorAll('.time-chart canvas').length")) == 3  # shares, pace, CPU
    assert text.index("GPU busy (work queued or running)") < text.index("raise the quota")
    browser.evaluate("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    browser.evaluate("document.querySelector('.command button').click()")
    browser.wait_for_text("Copied")
    assert browser.evaluate("window.copied === document.querySelector('.command code').textContent")


@WITH_BROWSER
def test_a_selected_time_stays_selected_in_every_view(browser: Browser, dashboard: Exposure) -> None:
    show(browser, dashboard.url)
    browser.wait_for_text("lost: CPU throttled")
    calls = "document.querySelector('.facts').innerText.match(/GPU calls\\s+([\\d,]+)/)[1]"
    whole = str(browser.evaluate(calls))
    browser.evaluate("document.querySelector('[aria-label=\"Zoom in\"]').click()")
    browser.wait_for_text("selected ")
    browser.wait_for(lambda: browser.evaluate(calls) not in (None, whole), "fewer calls")
    begin = re.search(r"begin_ns=(\d+)&end_ns=(\d+)", str(browser.evaluate("location.hash")))
    assert begin
    browser.evaluate("[...document.querySelectorAll('nav a')].find((one) => one.innerText === 'Calls').click()")
    browser.wait_for_text("Sorted by total time")
    assert begin[0] in str(browser.evaluate("location.hash"))
    assert any(f"/ops?{begin[0]}" in url for url in browser.requests)
    browser.evaluate(
        "[...document.querySelectorAll('button')].find((one) => one.innerText.startsWith('Clear')).click()"
    )
    browser.wait_for(lambda: "begin_ns" not in str(browser.evaluate("location.hash")), "all of the time")


@WITH_BROWSER
def test_dragging_over_the_chart_selects_a_time(browser: Browser, dashboard: Exposure) -> None:
    show(browser, dashboard.url)
    browser.wait_for_text("lost: CPU throttled")
    over = "document.querySelector('.time-chart .u-over')"
    browser.wait_for(lambda: bool(browser.evaluate(f"!!{over}")), "the chart")  # it is drawn anew as rows come
    left, top, width = (
        float(browser.evaluate(f"{over}.getBoundingClientRect().{side}")) for side in ("left", "top", "width")
    )
    browser.drag((left + width / 2, top + 20), (left + 3 * width / 4, top + 20))
    browser.wait_for_text("selected ")
    found = re.search(r"begin_ns=(\d+)&end_ns=(\d+)", str(browser.evaluate("location.hash")))
    assert found
    assert (int(found[2]) - int(found[1])) / 1e9 == pytest.approx((END_S + 1) / 4, abs=0.2)


@WITH_BROWSER
def test_a_slash_leads_to_the_filter_of_a_table(browser: Browser, detailed: Exposure) -> None:
    show(browser, f"{detailed.url}#/stacks/1")
    browser.wait_for_text("Time per line")
    browser.press("/")
    assert browser.evaluate("document.activeElement.className") == "filter"
    browser.type("model.py")
    browser.wait_for_text("1 of 8")
    assert int(browser.evaluate("document.querySelector('.table tbody').rows.length")) == 1


@WITH_BROWSER
def test_a_table_is_saved_as_csv_with_exact_values(browser: Browser, dashboard: Exposure, tmp_path: Path) -> None:
    browser.save_to(tmp_path)
    show(browser, f"{dashboard.url}#/ops")
    browser.wait_for_text("cudaStreamSynchronize")
    browser.evaluate("document.querySelector('.files button').click()")
    saved = tmp_path / "ingero-ops.csv"
    browser.wait_for(saved.exists, "the file")
    rows = list(csv.DictReader(io.StringIO(saved.read_text())))
    assert {row["name"] for row in rows} == {"cudaStreamSynchronize", "cudaLaunchKernel", "cudaMemcpyAsync"}
    for row in rows:
        assert sum(int(row[name] or 0) for name in STATE_COLUMNS) == pytest.approx(int(row["sum_ns"]), rel=1e-3)


@WITH_BROWSER
def test_a_name_is_no_formula_in_a_csv_file(browser: Browser, tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "recording.db", seconds=END_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, END_S, Step())
        run.culprit(trainer, 900, "=1+1", 3, 380, switches=400)
    browser.save_to(tmp_path)
    with serving(tmp_path / "recording.db") as exposure:
        show(browser, f"{exposure.url}#/processes")
        browser.wait_for_text("=1+1")
        browser.evaluate("document.querySelector('.files button').click()")
        saved = tmp_path / "ingero-culprits.csv"
        browser.wait_for(saved.exists, "the file")
    (row,) = csv.DictReader(io.StringIO(saved.read_text()))
    assert (row["culprit_name"], row["switches"]) == ("'=1+1", "400")


VIEWS = ("", "incidents", "ops", "processes", "containers", "stacks", "memory", "nccl", "host", "drops", "detections")


@WITH_BROWSER
@pytest.mark.parametrize("width", [1280, 400])
def test_no_view_is_wider_than_its_window(browser: Browser, detailed: Exposure, width: int) -> None:
    browser.resize(width, 900)
    wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for view in VIEWS:
        show(browser, f"{detailed.url}#/{view}")
        browser.wait_for_text("ngero itself")
        assert int(browser.evaluate(wider)) == 0, view
    browser.resize(1200, 1000)


@WITH_BROWSER
def test_a_question_that_cannot_be_answered_says_why_and_the_way_out(browser: Browser, dashboard: Exposure) -> None:
    show(browser, f"{dashboard.url}#/incidents/99")
    browser.wait_for_text("there is no incident 99")
    show(browser, f"{dashboard.url}#/ops?since=soon")
    browser.wait_for_text("is not a duration")
    browser.complaints.clear()  # of the console, about both answers


@WITH_BROWSER
def test_keys_alone_lead_from_the_overview_to_the_proof(browser: Browser, dashboard: Exposure) -> None:
    show(browser, dashboard.url)
    browser.wait_for_text("incidents: 2 HIGH")
    for _ in range(20):  # beyond the links of the frame
        browser.press("Tab")
        if "#/incidents/" in str(browser.evaluate("document.activeElement.href || ''")):
            break
    browser.press("Enter")
    browser.wait_for_text("Evidence")


@WITH_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(browser: Browser, dashboard: Exposure, scheme: str, tmp_path: Path) -> None:
    browser.prefer(scheme)
    show(browser, f"{dashboard.url}#/incidents/1")
    browser.wait_for_text("Fix")
    for element in ("h2", "main p.quiet", "main a", ".severity", "nav a[aria-current]", "th", "pre code"):
        assert contrast(browser, element) >= 4.5, element  # WCAG 2, AA
    browser.screenshot(tmp_path / f"{scheme}.png")
    assert (tmp_path / f"{scheme}.png").stat().st_size > 10_000


CONTRAST = """(() => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b]
        .map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const found = document.querySelector("ELEMENT");
    let behind = found;
    while (behind && parse(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const one = light(parse(getComputedStyle(found).color));
    const other = light(parse(getComputedStyle(behind ?? document.body).backgroundColor));
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
})()"""


def contrast(browser: Browser, element: str) -> float:
    """Between the element's text and what is behind it, 1 to 21."""
    return float(browser.evaluate(CONTRAST.replace("ELEMENT", element)))


@WITH_BROWSER
def test_the_token_is_asked_for_once(tmp_path: Path) -> None:
    with serving(make_recording(tmp_path / "recording.db"), token=TOKEN) as exposure, Browser() as browser:
        show(browser, exposure.url)
        browser.wait_for_text("Token")
        browser.evaluate("document.querySelector('input').value = 'wrong wrong wrong'")
        browser.evaluate("document.querySelector('form').submit()")
        browser.wait_for_text("That is not the token.")
        browser.evaluate(f"document.querySelector('input').value = '{TOKEN}'")
        browser.evaluate("document.querySelector('form').submit()")
        browser.wait_for_text("incidents: 2 HIGH")


@WITH_BROWSER
def test_the_page_follows_a_recording_that_begins_and_says_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "later.db"
    with serving(path) as exposure, Browser() as browser:
        show(browser, exposure.url)
        browser.wait_for_text("Nothing is recorded yet.")
        assert "sudo ingero trace" in browser.text()
        with Writer(path, session=SessionFacts(uuid="later", started_ns=1), node="here") as writer:
            writer.flush()
            browser.wait_for_text("Recording: this page follows it.")
            browser.wait_for_text("No verdict")
        browser.wait_for_text("The recording has ended.")


@WITH_BROWSER
def test_the_page_says_when_the_server_is_gone(tmp_path: Path) -> None:
    with Browser() as browser:
        with serving(make_recording(tmp_path / "recording.db")) as exposure:
            show(browser, exposure.url)
            browser.wait_for_text("incidents: 2 HIGH")
        browser.wait_for_text("The server does not answer")
