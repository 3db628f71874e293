"""A real Chromium, driven over its pipe by the DevTools protocol: pages, keys, pictures."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

LIMIT_S = 60.0


@attrs.define
class Browser:
    """One page of a Chromium. ``errors`` are what its console and its policies complained of."""

    _commands: int
    _answers: int
    _session: str = ""
    _number: int = 0
    _unread: bytes = b""
    errors: list[str] = attrs.field(factory=list)
    _events: list[dict[str, Any]] = attrs.field(factory=list)

    def open(self, url: str) -> None:
        """Go to ``url`` and wait until it is loaded."""
        self._events.clear()
        self.ask("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def run(self, expression: str) -> Any:
        """The value of an expression of the page's."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        found = self.ask("Runtime.evaluate", **given)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, as a person does."""
        code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, ord(key.upper()[0]))
        typed = "\r" if key == "Enter" else key if len(key) == 1 else None
        given: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        down = given if typed is None else given | {"text": typed}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **down)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **given)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.ask("Input.insertText", text=text)

    def look(self, *, width: int, dark: bool = False) -> None:
        """Take a screen so wide, light or dark."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)

    def picture(self, path: Path) -> None:
        """Keep what it shows as a picture."""
        shot = self.ask("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def load_s(self) -> float:
        """Seconds from the request of this page to the end of its loading."""
        expression = "performance.getEntriesByType('navigation')[0].loadEventStart / 1000"
        return float(self.run(expression))

    def until(self, expression: str) -> None:
        """Wait until an expression of the page's is true."""
        end_s = time.monotonic() + LIMIT_S
        while not self.run(expression):
            assert time.monotonic() < end_s, expression
            self._read(0.05)

    def wait(self, event: str) -> None:
        """Wait for an event of the page."""
        end_s = time.monotonic() + LIMIT_S
        while not any(each["method"] == event for each in self._events):
            assert time.monotonic() < end_s, event
            self._read(0.2)
        self._events.clear()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        number, end_s = self._number, time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            for found in self._read(1.0):
                if found.get("id") == number:
                    assert "error" not in found, (method, found)
                    result: dict[str, Any] = found["result"]
                    return result
        raise AssertionError(f"{method}: no answer within {LIMIT_S:g} s")

    def _read(self, patience_s: float) -> list[dict[str, Any]]:
        if select.select([self._answers], [], [], patience_s)[0]:
            self._unread += os.read(self._answers, 1 << 20)
        *whole, self._unread = self._unread.split(b"\0")
        found = [json.loads(each) for each in whole]
        for each in found:
            if "method" in each:
                self._events.append(each)
                self._complained(each)
        return found

    def _complained(self, event: dict[str, Any]) -> None:
        if event["method"] == "Log.entryAdded":
            self.errors.append(event["params"]["entry"]["text"])
        elif event["method"] in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
            self.errors.append(json.dumps(event["params"]))


@contextlib.contextmanager
def browsing(chromium: str, scratch: Path) -> Iterator[Browser]:
    """A browser with one empty page; it ends with the block."""
    to_read, to = os.pipe()
    back, back_write = os.pipe()
    # It reads commands from 3 and answers on 4: the shell's redirections put ours there.
    command = 'exec "$@" 3<&"$IN" 4>&"$OUT"'
    process = subprocess.Popen(
        [
            "bash", "-c", command, "chromium", chromium, "--headless", "--no-sandbox",
            "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", f"--user-data-dir={scratch}",
            "--remote-debugging-pipe", "about:blank",
        ],
        pass_fds=(to_read, back_write),
        env={**os.environ, "IN": str(to_read), "OUT": str(back_write)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_read)
    os.close(back_write)
    browser = Browser(to, back)
    try:
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.ask("Target.attachToTarget", targetId=target, flatten=True)
        browser._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            browser.ask(f"{domain}.enable")
        yield browser
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        os.close(to)
        os.close(back)
