"""A headless Chromium, driven over its debugging pipe: JSON messages, each ended by a NUL byte."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Chromium reads commands from descriptor 3 and answers on 4.
_START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_CODES = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
HOSTILE = [
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 2</script>",
    '"><img src=x onerror="window.ran = 3">',
    "<!--<script>",
]
"""What a model may write, to be shown as it is written."""


class Browser:
    """One tab; files it downloads land in ``folder / "downloads"``. Commands fail after ``patience`` seconds.

    ``complaints`` are the errors and warnings of all pages so far, ``requests`` the addresses that were asked for.
    """

    def __init__(self, folder: Path, patience: float = 60) -> None:
        assert CHROMIUM is not None
        self.downloads = folder / "downloads"
        self.patience = patience
        commands, self._out = (_high(end) for end in os.pipe())
        self._in, answers = (_high(end) for end in os.pipe())
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(commands), str(answers), CHROMIUM, *options,
             f"--user-data-dir={folder / 'profile'}", "about:blank"],
            pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._pending = b""
        self._count = self._taken = 0
        self.complaints: list[Any] = []
        self.requests: list[str] = []
        self._session = ""
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        os.close(self._out)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _note(self, event: str | None, params: dict[str, Any]) -> None:
        """Keep what a page says went wrong, and the addresses that it asks for."""
        if event == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"])
        elif (event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning")) or (
            event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert")
        ):
            self.complaints.append(params)
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            assert select.select([self._in], [], [], self.patience)[0], "the browser does not answer"
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "the browser has ended"
            self._pending += chunk
        first, _, self._pending = self._pending.partition(b"\0")
        return json.loads(first)

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file at a ``fragment`` (with its #), also where it is loaded already, and wait until it stands."""
        self.call("Page.navigate", url="about:blank")
        self.wait(lambda: self.run("location.href === 'about:blank'"))
        self.call("Page.navigate", url=page.resolve().as_uri() + fragment)
        self.wait(lambda: self.run("location.protocol === 'file:' && document.readyState === 'complete'"))

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of the promise that it gives."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """What a reader sees of the first element that fits."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def press(self, *keys: str) -> None:
        """Press and release keys, one after the other."""
        for key in keys:
            typed = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
            code = _CODES.get(key, ord(key.upper()[0]))
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **typed)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def downloaded(self, name: str) -> Path:
        """The one file that was downloaded since the last time, once it is there whole; moved aside."""
        path = self.downloads / name
        self.wait(lambda: path.is_file() and not list(self.downloads.glob("*.crdownload")))
        self._taken += 1
        return path.rename(path.with_suffix(f".{self._taken}{path.suffix}"))

    def wait(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + self.patience
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)

    def view(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Give the window a size in CSS pixels, and light or dark colours."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def mouse(self, x: float, y: float, *kinds: str) -> None:
        """Move the pointer to a place of the window and press and release there, or only the ``kinds`` of events."""
        for kind in kinds or ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def harmless(self, markup: str) -> None:
        """Check that no hostile text ran or became ``markup`` (a selector), and that markup put there by force would
        not run either."""
        assert self.run(f"window.ran === undefined && !document.querySelector({json.dumps(markup)})")
        self.run("""document.body.insertAdjacentHTML("beforeend", '<img src=x onerror="window.ran = 5">')""")
        assert self.run("new Promise((done) => setTimeout(() => done(window.ran), 200))") is None


def content(html: str) -> dict[str, Any]:
    """What a page embeds."""
    return json.loads(html.split('id="data">')[1].split("</script>")[0])


def _high(descriptor: int) -> int:
    """The same pipe end under a number that no standard stream and neither 3 nor 4 has."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
