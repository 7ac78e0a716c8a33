"""A headless Chromium that tests drive over its debugging pipe: JSON messages, each ended by a zero byte."""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_TO_BROWSER, _FROM_BROWSER = 3, 4
_SECONDS = 60


def find_chromium() -> str | None:
    """The browser's program; Debian's package is installed where it is missing and that is possible."""
    found = shutil.which("chromium")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "--yes", "chromium"], capture_output=True)
        found = shutil.which("chromium")
    return found


class Page:
    """A tab: what it logs and asks for is recorded."""

    def __init__(self, send: int, receive: int):
        self._send, self._receive = send, receive
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        """Errors and warnings of the console, and what the content policy blocked."""
        self.requests: list[str] = []
        """The addresses of everything that the page loads, itself included."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._record(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._receive, 1 << 20)
            assert read, "the browser has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _record(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.problems.append(json.dumps(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.problems.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])

    def size(self, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        """Set the window's size and colours."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[theme])

    def open(self, path: Path) -> float:
        """Open a file; returns how many seconds it took until the page was shown."""
        start = time.perf_counter()
        self._call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.body && document.body.dataset.ready === 'true'")
        # What is drawn is there after the frame after the next.
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
        return time.perf_counter() - start

    def run(self, code: str) -> Any:
        """The value of an expression; an error in it fails the test."""
        answer = self._call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, code: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _SECONDS
        while not self.run(f"Boolean({code})"):
            assert time.monotonic() < end, f"{code} is not true after {_SECONDS} s; problems: {self.problems}"
            time.sleep(0.02)

    def click(self, selector: str, number: int = 0) -> None:
        """Click into the middle of an element, as a user does."""
        found = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        self.run(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = f"{found}.getBoundingClientRect()"
        x, y = self.run(f"[{box}.x + {box}.width / 2, {box}.y + {box}.height / 2]")
        self.click_at(x, y)

    def click_at(self, x: float, y: float) -> None:
        """Click at a place of the window."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is shown, or the whole page, as PNG."""
        data = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def open_browser(program: str) -> Iterator[Page]:
    """A browser with one tab, which ends with the context."""
    inside_read, send = os.pipe()
    receive, inside_write = os.pipe()
    # Numbers above those that the browser reads and writes, so that giving it these loses neither.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (inside_read, inside_write)]
    os.close(inside_read), os.close(inside_write)

    def connect() -> None:
        os.dup2(ends[0], _TO_BROWSER)
        os.dup2(ends[1], _FROM_BROWSER)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *_FLAGS, f"--user-data-dir={profile}"]
        browser = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=connect,
        )
        for end in ends:
            os.close(end)
        try:
            yield Page(send, receive)
        finally:
            browser.terminate()
            browser.wait()
            os.close(send), os.close(receive)
