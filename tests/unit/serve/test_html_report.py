"""`ingero explain --html`: one file that loads nothing and runs nothing, whatever a recording holds."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import lzma
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click import UsageError
from click.testing import CliRunner, Result

from ingero.cli.html_report import NotAReportError
from ingero.cli.main import cli
from ingero.demo.scene import BEGIN_NS, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.evidence.evidence import Evidence
from ingero.events import SyncIntervalFlag
from ingero.serve.dashboard.stacks import Node
from ingero.serve.export.output import OutputError
from ingero.serve.html_report.flame_graph import DEEPEST, MAX_FRAMES, flame_graph
from ingero.serve.html_report.report import BEGINNING, report
from ingero.serve.html_report.time_chart import PIECES, layers, lost_ratios
from ingero.store.reader import Reader, open_reader
from ingero.store.records import Window
from ingero.units import SECOND_NS
from tests.browser.chromium import Browser, is_installed
from tests.unit.profiled_recording import imported

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "examples" / "recordings"
OLDER = ROOT / "tests" / "data" / "ingero-0.x"
CSS = (ROOT / "src/ingero/serve/html_report/report.css").read_text()
WITH_BROWSER = pytest.mark.skipif(not is_installed(), reason="chromium is not installed (apt-get install chromium)")
SECONDS = 12
NAME = '</title></style></svg>"><script>document.title="obeyed"</script><img src=//evil.example/x>\x1b[2J\u202e'
VOID = {"meta", "img", "br", "hr", "input", "link"}
LATE = Step(return_delay_ms=6, sync={"sleep": 5, "runq": 6})


class Page(HTMLParser):
    """Every element with its attributes, and whether each is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.is_well_formed = True
        self.words: list[str] = []
        self.feed(text)
        self.close()
        self.is_well_formed &= not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.is_well_formed &= bool(self._open) and self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def recorded(path: Path, *, name: str = "python", late: Step | None = LATE) -> Path:
    """A trainer whose CPU somebody takes from the middle on; with stacks, samples and thread states."""
    with ScriptedRun(path, seconds=SECONDS) as run:
        trainer = run.process(100, name)
        run.train(trainer, 0, SECONDS / 2, Step())
        run.train(trainer, SECONDS / 2, SECONDS, late or Step())
        line = run.stack([(f"/srv/{name}.py", 31, name), ("/srv/train.py", 90, "main")])
        for second in range(SECONDS):
            run.second(trainer, second, run=200, sleep=700, runq=100)
            run.call(trainer, "cudaStreamSynchronize", second + 0.5, 9.0, stack_hash=line)
            if late and second >= SECONDS // 2:
                run.culprit(trainer, 900, name, second, 380, switches=400)
        run.sample(trainer, 5, [(f"/srv/{name}.py", 31, name)], state="sleep", ms=40)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("html")


@pytest.fixture(scope="module")
def slow(folder: Path) -> Path:
    return recorded(folder / "slow.db")


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Path:
    return recorded(folder / "hostile.db", name=NAME)


def explain(database: Path, output: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["explain", "--db", str(database), "--html", str(output), *options])


def page(database: Path, output: Path, *options: str) -> Page:
    done = explain(database, output, *options)
    assert done.exit_code in (0, 1), done.output
    return Page(output.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pages(folder: Path, slow: Path, hostile: Path) -> dict[str, Page]:
    return {path.stem: page(path, folder / f"{path.stem}.html") for path in (slow, hostile)}


def test_the_report_holds_everything_of_the_incident(pages: dict[str, Page], slow: Path) -> None:
    said = json.loads(CliRunner().invoke(cli, ["explain", "--db", str(slow), "--json"]).output)
    [incident] = said["incidents"]
    text = pages["slow"].text
    assert incident["headline"] in text
    commands = [fix["command"] for fix in incident["fix"] if fix["command"]]
    assert commands
    for command in commands:
        assert all(" ".join(line.split()) in text for line in command.splitlines())
    for title in ("Impact", "Fix", "Breakdown", "Culprits", "Evidence", "Timeline", "Not checked", "Dropped data"):
        assert title in text
    assert "main" in text  # of the flame graph


def test_its_exit_code_is_that_of_explain(slow: Path, tmp_path: Path) -> None:
    healthy = recorded(tmp_path / "healthy.db", late=None)
    assert explain(slow, tmp_path / "a.html").exit_code == 1
    assert explain(healthy, tmp_path / "b.html").exit_code == 0


def test_without_incidents_it_says_so_and_shows_where_the_time_went(tmp_path: Path) -> None:
    found = page(recorded(tmp_path / "healthy.db", late=None), tmp_path / "a.html")
    assert "No incidents found" in found.text
    assert not found.all_of("article")
    assert [one for one in found.all_of("svg") if one.get("class") == "chart"]


@pytest.mark.parametrize("name", ["slow", "hostile"])
def test_nothing_is_loaded_and_nothing_runs(pages: dict[str, Page], name: str) -> None:
    found = pages[name]
    assert found.is_well_formed
    assert not {tag for tag, _ in found.elements} & {"script", "img", "link", "iframe", "object", "base", "form", "use"}
    for _, attributes in found.elements:
        assert not [
            key for key in attributes if key.startswith("on") or key in ("src", "style", "srcset", "xlink:href")
        ]
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in CSS
    assert "@import" not in CSS


def test_the_policy_allows_this_style_and_nothing_else(pages: dict[str, Page], folder: Path) -> None:
    [policy] = [one["content"] for one in pages["slow"].all_of("meta") if "http-equiv" in one]
    [style] = re.findall(r"<style>(.*?)</style>", (folder / "slow.html").read_text(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_hostile_names_are_shown_and_do_nothing(pages: dict[str, Page], folder: Path) -> None:
    raw = (folder / "hostile.html").read_text()
    assert "\\x1b[2J\\u202e" in pages["hostile"].text
    assert '<script>document.title="obeyed"</script>' in pages["hostile"].text
    assert not [char for char in raw if not (char.isprintable() or char in "\n\u00a0")]


def test_headings_go_down_one_level_at_a_time_and_tables_have_heads(pages: dict[str, Page]) -> None:
    levels = [int(tag[1]) for tag, _ in pages["slow"].elements if re.fullmatch(r"h\d", tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    tables = pages["slow"].all_of("table")
    assert len(tables) == len(pages["slow"].all_of("caption")) >= 3
    assert {one.get("scope") for one in pages["slow"].all_of("th")} == {"col", "row"}
    pictures = [one for one in pages["slow"].all_of("svg") if one.get("role") == "img"]
    assert all(one.get("aria-label") for one in pictures)
    assert len(pictures) >= 3


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_have_the_contrast_that_wcag_aa_asks_for(theme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    colors = dict(re.findall(r"--([\w-]+): (#\w{6});", blocks[theme]))
    on_pages = itertools.product(("text", "quiet", "link", "critical", "high", "medium", "low"), ("back", "card"))
    frames = (("on-frame", back) for back in ("own", "python", "waiting", "native", "op"))
    assert [pair for pair in (*on_pages, *frames) if contrast(colors[pair[0]], colors[pair[1]]) < 4.5] == []
    neighbors = (("idle", "busy"), ("busy", "late"), ("lost", "back"))
    assert [pair for pair in neighbors if contrast(colors[pair[0]], colors[pair[1]]) < 1.5] == []


def test_the_parts_of_the_chart_add_up_to_the_wall_time(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "a.db", seconds=SECONDS) as run:
        run.train(run.process(100, "python"), 0, SECONDS, LATE)
    with open_reader(tmp_path / "a.db") as reader:
        window = whole(reader)
        [gpu_stream] = Evidence(reader, window).main_streams.values()
    found = layers(gpu_stream, window, is_idle_known=True)
    begin, end = gpu_stream.sync_intervals["prev_sync_end_ns"], gpu_stream.sync_intervals["sync_end_ns"]
    assert sum(one.total_ns for one in found) == int((end - begin).sum())
    inside = np.minimum(end, window.end_ns) - np.maximum(begin, window.begin_ns)
    shown = sum((one.ratios for one in found), start=np.zeros(PIECES))
    assert float(shown.sum()) * window.duration_ns / PIECES == pytest.approx(float(inside.sum()), rel=1e-6)
    last = int(PIECES * (int(end.max()) - window.begin_ns) / window.duration_ns)
    assert last > PIECES // 2
    assert shown[1:last] == pytest.approx(1.0, abs=1e-4)
    later = Window(begin_ns=window.end_ns + SECOND_NS, end_ns=window.end_ns + 2 * SECOND_NS)
    assert not any(one.ratios.any() for one in layers(gpu_stream, later, is_idle_known=False))


@pytest.mark.parametrize("flags", [SyncIntervalFlag(0), SyncIntervalFlag.UNTIMED])
def test_steps_that_never_sync_have_a_chart_of_what_is_known_of_them(tmp_path: Path, flags: SyncIntervalFlag) -> None:
    with ScriptedRun(tmp_path / "a.db", seconds=SECONDS) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, SECONDS, RepeatedStep(host_ms=3.0, blocked={"launch": 4.0}, flags=flags))
    with open_reader(tmp_path / "a.db") as reader:
        window = whole(reader)
        [gpu_stream] = Evidence(reader, window).repeated_steps
    found = layers(gpu_stream, window, is_idle_known=True)
    assert sum(one.total_ns for one in found) == int(
        (gpu_stream.sync_intervals["sync_end_ns"] - gpu_stream.sync_intervals["prev_sync_end_ns"]).sum()
    )
    text = page(tmp_path / "a.db", tmp_path / "a.html").text
    assert f"{len(gpu_stream.sync_intervals):,} steps found by repetition" in text
    assert ("blocked for the GPU (at least)" in text) == bool(flags)


def whole(reader: Reader) -> Window:
    window = reader.window(None, 0)
    assert window
    return window


def test_time_lost_is_shown_when_it_was_lost(slow: Path) -> None:
    with open_reader(slow) as reader:
        window = whole(reader)
        incidents = diagnose(reader, window).incidents
    lost = lost_ratios(incidents, incidents[0].affected[0].process, window)
    middle = int(PIECES * (BEGIN_NS + SECONDS // 2 * SECOND_NS - window.begin_ns) / window.duration_ns)
    assert lost[: middle - 4].max() < 0.05
    assert lost[middle + 4 : middle + 50].min() > 0.2
    assert not lost_ratios(incidents, 12345, window).any()


def wide(children: int, depth: int) -> Node:
    """A tree of equal children, each a chain."""
    root = Node("all", "all", is_own=False, ns=children * 1000, count=children)
    for number in range(children):
        node = root
        for level in range(depth):
            child = Node(f"f{number}.{level}", "python", is_own=False, ns=1000 - level, count=1)
            node.children.append(child)
            node = child
    return root


@pytest.mark.parametrize(("children", "depth"), [(5_000, 2), (3, 200), (1, 1)])
def test_a_flame_graph_is_bounded_and_says_what_it_leaves_out(children: int, depth: int) -> None:
    picture, left_out = flame_graph(wide(children, depth), "label")
    frames = picture.count("<title>")
    assert frames <= MAX_FRAMES
    assert frames + left_out == 1 + children * depth
    assert max(int(y) for y in re.findall(r' y="(\d+)" width', picture)) <= DEEPEST * 18


def test_many_incidents_and_processes_make_no_large_file(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "many.db", seconds=SECONDS) as run:
        for number in range(60):
            one = run.process(100 + number, f"python{number}")
            run.train(one, 0, SECONDS / 2, Step())
            run.train(one, SECONDS / 2, SECONDS, LATE)
            for second in range(SECONDS // 2, SECONDS):
                run.culprit(one, 900 + number, f"hog{number}", second, 380, switches=400)
    with open_reader(tmp_path / "many.db") as reader:
        window = whole(reader)
        found = diagnose(reader, window)
        incident = found.incidents[0]
        long = replace(incident, culprits=tuple(replace(incident.culprits[0], name="n" * 9_000) for _ in range(9_000)))
        raw = report(reader, window, replace(found, incidents=(long,) * 60))
    assert len(raw) < 4 << 20
    shown = Page(raw.decode())
    assert len(shown.all_of("article")) == 40
    assert "20 more incidents are left out" in shown.text
    assert "and 8,994 more culprits" in shown.text
    assert "and 10 more, left out here" in shown.text


def test_only_a_report_is_written_over(slow: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.html"
    output.write_text("<!DOCTYPE html>\n<p>somebody's page</p>")
    assert isinstance(explain(slow, output).exception, NotAReportError)
    assert "somebody's page" in output.read_text()
    assert explain(slow, output, "--force").exit_code == 1
    assert output.read_bytes().startswith(BEGINNING)
    assert explain(slow, output).exit_code == 1
    assert isinstance(explain(slow, slow, "--force").exception, OutputError)
    assert isinstance(explain(slow, tmp_path / "no" / "a.html").exception, OutputError)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.html"]


@pytest.mark.parametrize("option", ["--json", "--chains"])
def test_one_form_at_a_time(slow: Path, tmp_path: Path, option: str) -> None:
    assert explain(slow, tmp_path / "a.html", option).exit_code == 2
    assert not (tmp_path / "a.html").exists()


def test_force_is_for_a_report(slow: Path) -> None:
    done = CliRunner().invoke(cli, ["explain", "--db", str(slow), "--force"], standalone_mode=False)
    assert isinstance(done.exception, UsageError)


def test_a_part_of_the_recording_and_one_process_can_be_asked_for(slow: Path, tmp_path: Path) -> None:
    assert "python [100]" in page(slow, tmp_path / "a.html", "--pid", "100", "--since", "5s").text


def test_several_nodes_stand_one_after_the_other(tmp_path: Path) -> None:
    sources = [str(path) for path in sorted(SAMPLES.glob("sample-*.db"))]
    assert CliRunner().invoke(cli, ["merge", *sources, "-o", str(tmp_path / "all.db")]).exit_code == 0
    found = page(tmp_path / "all.db", tmp_path / "a.html")
    assert [f"Node gpu-node-0{number}" in found.text for number in (1, 2, 3, 4)] == [True] * 4


@pytest.mark.parametrize("name", ["pytorch-dataloader-starvation", "sample-cluster"])
def test_recordings_of_older_versions_have_a_report(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(lzma.decompress((OLDER / f"{name}.db.xz").read_bytes()))
    found = page(tmp_path / "a.db", tmp_path / "a.html")
    assert "What it found itself" in found.text


def test_imported_profiles_have_a_report(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as profiled:
        one = profiled.program()
        for number in range(20):
            one.launch(number * 10, runs=(number * 10 + 1, number * 10 + 8))
    found = page(tmp_path / "a.db", tmp_path / "a.html")
    assert "Profile" in found.text


def test_an_empty_window_of_a_recording_without_calls_has_a_report(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "a.db", seconds=SECONDS) as run:
        run.second(run.process(100, "python"), 1, run=10)
    assert "No GPU sync or step was recorded" in page(tmp_path / "a.db", tmp_path / "a.html").text


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@WITH_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("name", ["slow", "hostile"])
@pytest.mark.usefixtures("pages")
def test_a_browser_shows_it_without_a_request_a_complaint_or_sideways_scrolling(
    browser: Browser, folder: Path, name: str, width: int, scheme: str
) -> None:
    asked, complained = len(browser.requests), len(browser.complaints)
    browser.resize(width, 900)
    browser.prefer(scheme)
    browser.open(f"file://{folder / name}.html")
    browser.wait_for_text("Written by ingero")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.evaluate(
        "[...document.querySelectorAll('.frame-all')].every(e => e.getBoundingClientRect().width > 0)"
    )
    assert browser.evaluate("document.title").startswith("GPU stall report")
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")  # the policy lets the style through
    assert browser.requests[asked:] == [f"file://{folder / name}.html"]
    assert browser.complaints[complained:] == []
