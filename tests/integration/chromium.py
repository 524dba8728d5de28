"""A real browser: Chromium without a window, driven over two pipes with the DevTools protocol. Nothing to install but
Chromium itself."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
PATIENCE = 20.0
"""Seconds that anything may take before a test fails."""
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
CONTROL = 2
SHIFT = 8


class Browser:
    """The pipes: file 3 of the browser takes commands, file 4 gives answers and events, all of them JSON and a NUL."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        # numbers far above 3 and 4, so that neither overwrites the other
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (commands, answers)]
        arguments = ["--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"]
        arguments += ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
        arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
        silence = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, end, number) for end, number in zip(ends, (3, 4))]
        self.process = os.posix_spawn(
            CHROMIUM, [CHROMIUM, *arguments], os.environ, file_actions=[*silence, *pipes], setpgroup=0
        )
        for end in (commands, answers, *ends):
            os.close(end)
        self.number, self.unread, self.events = 0, b"", list[dict[str, Any]]()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        os.write(self.commands, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while (said := self.receive(end)).get("id") != self.number:
            self.events.append(said)
        assert "error" not in said, f"{method}: {said['error']}"
        found: dict[str, Any] = said["result"]
        return found

    def receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            part = os.read(self.answers, 1 << 20)
            assert part, "Chromium has ended"
            self.unread += part
        message, _, self.unread = self.unread.partition(b"\0")
        said: dict[str, Any] = json.loads(message)
        return said

    def close(self) -> None:
        os.close(self.commands)
        os.close(self.answers)
        os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


class Page:
    """A tab with a profile of its own. What its scripts throw or are forbidden is kept in `complaints`."""

    def __init__(self, browser: Browser, width: int = 1280, height: int = 1000, dark: bool = False) -> None:
        self.browser = browser
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def close(self) -> None:
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    # ---- looking

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        said = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait(self, condition: str, seconds: float = PATIENCE) -> Any:
        """For an expression to be true."""
        end = time.monotonic() + seconds
        while not (found := self.run(condition)):
            assert time.monotonic() < end, f"{condition} is still false, {self.run('document.body.innerText')}"
            time.sleep(0.02)
        return found

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def events(self, method: str) -> list[dict[str, Any]]:
        self.run("0")  # those on the way have arrived when this is answered
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in mine if event["method"] == method]

    @property
    def complaints(self) -> list[str]:
        thrown = [event["exceptionDetails"] for event in self.events("Runtime.exceptionThrown")]
        logged = [event["entry"] for event in self.events("Log.entryAdded")]
        forbidden = [entry["text"] for entry in logged if entry["source"] not in ("network", "intervention")]
        return [str(one.get("exception", one)) for one in thrown] + forbidden

    @property
    def asked(self) -> list[str]:
        """Every address that was asked for."""
        return [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]

    def picture(self, file: Path, whole: bool = True) -> None:
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(image["data"]))

    # ---- hands

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of what is seen."""
        place = self.run(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{ block: "center" }});
            const {{ x, y, width, height }} = element.getBoundingClientRect();
            return {{ x: x + width / 2, y: y + height / 2 }};
        }})()""")
        self.click_at(**place)

    def click_at(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, modifiers: int = 0) -> None:
        code = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
        typed = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") and not modifiers else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", modifiers=modifiers, **code, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **code)

    def type(self, text: str) -> None:
        """Where the focus is."""
        self.call("Input.insertText", text=text)

    def write(self, selector: str, text: str) -> None:
        """Instead of what is there."""
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.type(text)

    def select(self, selector: str, value: str) -> None:
        self.run(f"""(() => {{
            const select = document.querySelector({json.dumps(selector)});
            select.value = {json.dumps(value)};
            select.dispatchEvent(new Event("change", {{ bubbles: true }}));
        }})()""")


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
