"""A real browser for tests: Chromium without a window, driven by its DevTools protocol.

The protocol is spoken over a pair of pipes (`--remote-debugging-pipe`), so that it takes neither a
port nor a package: no driver to match the browser's version, and nothing to install but Chromium.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 120.0
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
}


def find_browser() -> str | None:
    """Where Chromium is, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a Chromium of its own.

    Attributes:
        problems: What the page has logged as warning or error, and exceptions.
        requests: Addresses that were asked for, by anything.
    """

    def __init__(self, program: str) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self._buffer = b""
        self._folder = tempfile.TemporaryDirectory()
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()

        def place() -> None:
            # The browser reads from 3 and writes to 4; neither may lie on the other before.
            one, other = os.dup(read_end), os.dup(write_end)
            os.dup2(one, 3)
            os.dup2(other, 4)

        self._process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--remote-debugging-pipe",
                f"--user-data-dir={self._folder.name}",
                "--no-first-run",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--hide-scrollbars",
                "--force-color-profile=srgb",
                "about:blank",
            ],
            close_fds=False,
            preexec_fn=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser, and remove what it has written."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        for _ in range(50):
            try:
                self._folder.cleanup()
                return
            except OSError:  # Its children may still be writing.
                time.sleep(0.1)

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Send a command, and wait for what comes of it."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": arguments}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer.get("result", {}))
            self._notice(answer)

    def open(self, address: str, *, scripts: bool = True) -> None:
        """Go to a page, and wait until it is loaded and drawn; without its scripts if so asked."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._events.clear()
        self.call("Page.navigate", url=address)
        end = time.monotonic() + PATIENCE
        while not any(one.get("method") == "Page.loadEventFired" for one in self._events):
            if time.monotonic() > end:
                raise TimeoutError(f"{address} is not loaded after {PATIENCE:.0f} s")
            self._notice(self._message())
        self.call("Emulation.setScriptExecutionDisabled", value=False)
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def js(self, code: str) -> Any:
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def look(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Set the size of the window, and whether its owner likes it dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = "dark" if dark else "light"
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.settle()

    def shoot(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page."""
        how: dict[str, Any] = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            how = {"captureBeyondViewport": True, "clip": clip}
        found = self.call("Page.captureScreenshot", format="png", **how)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path) -> None:
        """Write the page as it would be printed."""
        found = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        path.write_bytes(base64.b64decode(found["data"]))

    def press(self, key: str) -> None:
        """Press a key, and let it go."""
        code, number, text = KEYS[key]
        about = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)
        self.settle()

    def type(self, text: str) -> None:
        """Type text into what has the focus."""
        self.call("Input.insertText", text=text)
        self.settle()

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def click(self, x: float, y: float) -> None:
        """Click."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], PATIENCE)[0]:
                raise TimeoutError("the browser is silent")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        whole, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(whole))

    def _notice(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        method, about = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(about["exceptionDetails"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("warning", "error"):
            self.problems.append(about["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("warning", "error"):
            self.problems.append(str(about["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
