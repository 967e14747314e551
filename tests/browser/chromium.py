"""Headless Chromium over its debugging pipe: opens a page, waits for a text, looks, counts requests."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--ignore-certificate-errors"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
_PATIENCE_S = 60.0  # of a machine that does much else


def is_installed() -> bool:
    """Whether there is a Chromium to drive."""
    return shutil.which("chromium") is not None


class Browser:
    """One page of a browser of its own; a context manager. requests: addresses asked for so far, in order."""

    def __init__(self, *, width: int = 1200, height: int = 1000) -> None:
        self._size = f"--window-size={width},{height}"
        self._profile = TemporaryDirectory(prefix="ingero-browser-", ignore_cleanup_errors=True)
        self._number = 0
        self._session = ""
        self._answers: dict[int, dict[str, Any]] = {}
        self._rest = b""
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def __enter__(self) -> Browser:
        command_out, self._write = os.pipe()
        self._read, answer_in = os.pipe()
        # the browser reads from descriptor 3 and writes to 4
        arguments = ["chromium", *_FLAGS, self._size, f"--user-data-dir={self._profile.name}"]
        shell = f'exec 3<&{command_out} 4>&{answer_in}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "browser", *arguments, "--remote-debugging-pipe", "about:blank"],
            pass_fds=(command_out, answer_in),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_out)
        os.close(answer_in)
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:  # it has no more to tell than that it hangs
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def run_first(self, script: str) -> None:
        """A script that each page opened from now on runs before its own."""
        self._ask("Page.addScriptToEvaluateOnNewDocument", source=script)

    def open(self, url: str) -> None:
        """Goes there."""
        self._ask("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; None while one page gives way to the next."""
        found = self._answer("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return found.get("result", {}).get("result", {}).get("value")

    def text(self) -> str:
        """What the page says."""
        return str(self.evaluate("document.body ? document.body.innerText : ''") or "")

    def reload(self) -> None:
        """Loads the page anew."""
        self._ask("Page.reload")

    def wait_for(self, is_there: Callable[[], bool], what: str) -> None:
        """Asks again until it is so."""
        end = time.monotonic() + _PATIENCE_S
        while not is_there():
            assert time.monotonic() < end, f"{what}: not seen; the page says: {self.text()[:500]}"
            time.sleep(0.05)

    def wait_for_text(self, text: str) -> None:
        """Until the page says it."""
        self.wait_for(lambda: text in self.text(), text)

    def press(self, key: str) -> None:
        """A key of the keyboard: Tab, Enter, /."""
        codes, texts = {"Tab": 9, "Enter": 13, "/": 191}, {"Enter": "\r", "/": "/"}
        for kind in ("keyDown", "keyUp"):
            text = {"text": texts[key]} if key in texts and kind == "keyDown" else {}
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def type(self, text: str) -> None:
        """Text, where the keyboard writes to."""
        self._ask("Input.insertText", text=text)

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Moves the pointer from one place of the window to another with its button held."""
        steps = (
            ("mouseMoved", begin, 0),
            ("mousePressed", begin, 1),
            ("mouseMoved", end, 1),
            ("mouseReleased", end, 0),
        )
        for kind, (x, y), buttons in steps:
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)

    def resize(self, width: int, height: int) -> None:
        """The size of the page's window, in CSS pixels."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def save_to(self, folder: Path) -> None:
        """Where downloads go from now on."""
        self._ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def prefer(self, scheme: str) -> None:
        """Light or dark."""
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path, *, is_whole: bool = True) -> None:
        """The whole page as a picture, or what the window shows of it."""
        area: dict[str, Any] = {}
        if is_whole:
            size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
            area = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        found = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole, **area)
        path.write_bytes(base64.b64decode(found["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        answer = self._answer(method, **parameters)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _answer(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _PATIENCE_S
        while self._number not in self._answers:
            self._receive(end - time.monotonic())
        return self._answers.pop(self._number)

    def _receive(self, patience_s: float) -> None:
        ready, _, _ = select.select([self._read], [], [], max(patience_s, 0))
        assert ready, "the browser does not answer"
        *messages, self._rest = (self._rest + os.read(self._read, 1 << 20)).split(b"\0")
        for text in messages:
            self._take(json.loads(text))

    def _take(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if "id" in message:
            self._answers[message["id"]] = message
        elif method == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        elif method == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.complaints.append(message["params"]["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(message["params"]["exceptionDetails"])[:500])
