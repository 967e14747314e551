"""The pictures of the page: what they find wrong, and that they find nothing wrong with a view of everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.page_pictures import AXE, LAYOUT, faults_of
from ingero.serve.dashboard.app import PAGE
from ingero.serve.dashboard.exposure import Exposure
from tests.browser.chromium import Browser, is_installed
from tests.unit.dashboard_recording import make_detailed, serving

pytestmark = [
    pytest.mark.skipif(not (PAGE / "index.html").exists(), reason="the page is not built (make build)"),
    pytest.mark.skipif(not is_installed(), reason="chromium is not installed (apt-get install chromium)"),
]

WELL = "<h1>A title</h1><p>Some text.</p><div style='overflow-x:auto;width:90px'><pre>a line to scroll</pre></div>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture(scope="module")
def detailed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposure]:
    with serving(make_detailed(tmp_path_factory.mktemp("pictures") / "recording.db")) as exposure:
        yield exposure


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (WELL, ""),
        (WELL + "<p style='margin-top:-2.2em'>Text upon it.</p>", "over each other"),
        (WELL + "<p style='width:60px;overflow:hidden;white-space:nowrap'>Longer than its box.</p>", "cut off"),
        (WELL + "<p style='margin-left:-20px;white-space:nowrap'>Outside.</p>", "cut off"),
        (WELL + "<p style='width:3000px'>Wide.</p>", "wider than its window"),
    ],
)
def test_what_is_wrong_with_a_layout_is_found(browser: Browser, body: str, wrong: str) -> None:
    browser.open("about:blank")
    browser.evaluate(f"document.documentElement.innerHTML = {body!r}; 0")
    found = browser.evaluate(LAYOUT.read_text())
    assert len(found) == bool(wrong), found
    assert all(wrong in one for one in found)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (npm ci in web/)")
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light")])
def test_nothing_is_wrong_with_views_of_everything(
    browser: Browser, detailed: Exposure, width: int, scheme: str
) -> None:
    views = ("", "ops", "stacks/1", "memory", "host")
    assert [str(one) for one in faults_of(browser, detailed.url, views, widths=[width], schemes=[scheme])] == []


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (npm ci in web/)")
def test_a_serious_finding_of_axe_core_is_a_fault(browser: Browser, detailed: Exposure) -> None:
    button = "document.body.insertAdjacentHTML('beforeend', '<button></button>')"
    browser.run_first(f"addEventListener('load', () => {button})")
    found = [str(one) for one in faults_of(browser, detailed.url, ("drops",), widths=[1600], schemes=["light"])]
    assert len(found) == 1
    assert "button-name" in found[0]
