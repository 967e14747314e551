"""Every view of the dashboard in Chromium, narrow and wide, light and dark: pictures, and what is wrong in them.

Wrong is: text over text, text that is cut off or outside the window, a page that scrolls sideways, and what axe-core
calls serious or critical. `--readme FOLDER` writes the two pictures of the first screen for the README instead.

Run: python -m bench.page_pictures [--db FILE ...] [--out FOLDER] [--readme FOLDER]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.dashboard import serving
from tests.browser.chromium import Browser

ROOT = Path(__file__).resolve().parent.parent
LAYOUT = Path(__file__).with_name("page_layout.js")
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
RECORDINGS = (ROOT / "examples" / "recordings" / "incident.db",)
WIDTHS = {400: 860, 1600: 1000}  # and the height of the window
SCHEMES = ("light", "dark")
VIEWS = (
    *("", "incidents", "incidents/1", "ops", "stacks", "nccl", "processes", "processes/1", "containers", "memory"),
    *("host", "drops", "detections", "detections/cpu-contention"),
)
README_SIZE = (1280, 900)

_AXE = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.help} (${one.nodes.slice(0, 3).flatMap((node) => node.target).join(", ")})`))"""
_READY = """(() => {
    const text = document.body ? document.body.innerText : "";
    return text.includes("Dropped while recording") && !document.querySelector("[aria-busy]")
        && !/Reading the recording|Drawing the recording|Looking for stalls/.test(text);
})()"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault in one view."""

    view: str
    width: int
    scheme: str
    text: str

    def __str__(self) -> str:
        return f"#/{self.view} at {self.width} px, {self.scheme}: {self.text}"


def faults_of(
    browser: Browser, url: str, views: Sequence[str] = VIEWS, *, widths: Iterable[int] = WIDTHS,
    schemes: Iterable[str] = SCHEMES, out: Path | None = None,
) -> Iterator[Fault]:  # fmt: skip
    """Opens every view; pictures go to `out`. Without axe-core in web/node_modules its rules are not asked."""
    axe = AXE.read_text(encoding="utf-8") if AXE.exists() else ""
    layout = LAYOUT.read_text(encoding="utf-8")
    for scheme in schemes:
        browser.prefer(scheme)
        for width in widths:
            browser.resize(width, WIDTHS.get(width, 900))
            for view in views:
                show(browser, f"{url}#/{view}")
                wrong: list[str] = list(browser.evaluate(layout) or [])
                if axe:
                    browser.evaluate(axe + "; 0")
                    wrong += browser.evaluate(_AXE) or []
                yield from (Fault(view=view, width=width, scheme=scheme, text=text) for text in wrong)
                if out:
                    browser.screenshot(out / f"{_file_name(view)}-{width}-{scheme}.png")


def show(browser: Browser, url: str) -> None:
    """Opens the view as a new visitor, and waits until all requests are answered."""
    browser.open("about:blank")
    browser.open(url)
    browser.wait_for(lambda: bool(browser.evaluate(_READY)), url)
    browser.evaluate("document.fonts.ready.then(() => new Promise((done) => setTimeout(done, 60)))")


def _file_name(view: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", view) or "overview"


@contextmanager
def served(path: Path) -> Iterator[str]:
    """The address of a server for the recording."""
    server, port = serving(path)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait()


def readme_pictures(path: Path, folder: Path) -> None:
    """The first screen, light and dark: `dashboard-light.png`, `dashboard-dark.png`."""
    with Browser() as browser, served(path) as url:
        for scheme in SCHEMES:
            browser.prefer(scheme)
            browser.resize(*README_SIZE)
            show(browser, url)
            browser.screenshot(folder / f"dashboard-{scheme}.png", is_whole=False)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db", type=Path, action="append", help="a recording; several: given again")
    parser.add_argument("--out", type=Path, help="where pictures go (default: a new folder in /tmp)")
    parser.add_argument("--readme", type=Path, help="write only the README's pictures, into this folder")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(arguments)
    recordings = options.db or RECORDINGS
    if options.readme:
        options.readme.mkdir(parents=True, exist_ok=True)
        readme_pictures(recordings[0], options.readme)
        return
    out = options.out or Path(tempfile.mkdtemp(prefix="ingero-pages-"))
    faults: list[Fault] = []
    for path in recordings:
        folder = out / path.stem
        folder.mkdir(parents=True, exist_ok=True)
        with Browser() as browser, served(path) as url:
            faults += faults_of(browser, url, out=folder)
    if options.json:
        found: dict[str, Any] = {"pictures": str(out), "faults": [str(one) for one in faults]}
        print(json.dumps(found))
    else:
        print(f"pictures in {out}", *faults, sep="\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
