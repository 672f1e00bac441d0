"""Headless Chromium over its debugging pipe: no port, no driver program, nothing to install but the browser."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_START: Final = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and answers on 4."""
TIMEOUT_S: Final = 60
"""Longest wait for one answer of the browser; a hang fails the test instead of the suite."""


def chromium() -> str | None:
    """Path of a Chromium; ASCEND_PERF_CHROMIUM names another one. None when there is none."""
    named = os.environ.get("ASCEND_PERF_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser. Collects console messages, errors and requests from the start."""

    def __init__(self, program: str, profile: Path) -> None:
        self.messages: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--mute-audio",
            "--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(to_read), str(to_write), program, *flags],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._session = ""
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one command of the DevTools protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], TIMEOUT_S)
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser gave no answer" if not ready else "the browser ended")
            self._buffer += data
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.messages.append(str(details.get("exception", {}).get("description", details.get("text"))))
        elif method == "Runtime.consoleAPICalled":
            self.messages.append(f"{params['type']}: {[arg.get('value') for arg in params['args']]}")
        elif method == "Log.entryAdded":
            self.messages.append(f"{params['entry']['level']}: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method:
            self._events.append({"method": method, **params})

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file and wait until it is drawn."""
        # From an empty page: going to a fragment of the same page would load nothing.
        self.call("Page.navigate", url="about:blank")
        self._events.clear()
        self.call("Page.navigate", url=page.as_uri() + fragment)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._next()
        self.settle()

    def settle(self) -> None:
        """Wait for the frames in which charts are drawn."""
        frames = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(r, 30))))"
        self.run(frames)

    def run(self, script: str) -> Any:
        """Value of an expression in the page (a promise is awaited)."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"].get("exception", {}).get("description", script))
        return result["result"].get("value")

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Set the size of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def prefer(self, scheme: str, media: str = "") -> None:
        """Set the colours that the system prefers, and the medium (print)."""
        self.call(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def key(self, key: str) -> None:
        """Press a key on what has the focus."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def mouse(self, kind: str, x: float, y: float, *, pressed: bool = False) -> None:
        """Move, press or release the left button."""
        button = "left" if pressed or kind != "mouseMoved" else "none"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=int(pressed), clickCount=1)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save a picture of the window, or of the whole page."""
        clip = {}
        if whole:
            box = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": box["width"], "height": box["height"], "scale": 1}}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)
        path.write_bytes(base64.b64decode(shot["data"]))
