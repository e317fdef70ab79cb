"""A Chromium that is driven through chromedriver, by the plain HTTP of WebDriver."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pages import find_browser

DRIVER: Final = shutil.which("chromedriver")
MISSING: Final = "" if DRIVER and find_browser() else "needs chromium and chromedriver on the PATH"
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"
_OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CONTROL: Final = "\ue009"


class Window:
    """One window of the browser."""

    def __init__(self, address: str) -> None:
        self._address = address

    def open(self, page: Path, fragment: str = "") -> None:
        self._send("POST", "url", {"url": page.resolve().as_uri() + fragment})

    def run(self, script: str) -> Any:
        """The value of a function's body in the page."""
        return self._send("POST", "execute/sync", {"script": script, "args": []})

    def click(self, selector: str) -> None:
        self._send("POST", f"element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._send("POST", f"element/{self._find(selector)}/value", {"text": text})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._send("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width: int, height: int) -> None:
        """Set the size that the page sees; windows cannot be as narrow as a phone."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def _find(self, selector: str) -> str:
        found: dict[str, str] = self._send("POST", "element", {"using": "css selector", "value": selector})
        return found[_ELEMENT]

    def _send(self, method: str, path: str, body: dict[str, Any]) -> Any:
        return _request(method, f"{self._address}/{path}", body)


@contextmanager
def browser(folder: Path) -> Iterator[Window]:
    """A window, with a profile below the folder."""
    assert DRIVER is not None
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            # "ChromeDriver was started successfully on port 12345."
            told = next(line for line in driver.stdout if "successfully on port" in line)
            port = told.strip().rstrip(".").rpartition(" ")[2]
            service = f"http://127.0.0.1:{port}/session"
            options = {"binary": find_browser(), "args": [*_OPTIONS, f"--user-data-dir={folder / 'profile'}"]}
            wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
            session = f"{service}/{_request('POST', service, wanted)['sessionId']}"
            try:
                yield Window(session)
            finally:
                _request("DELETE", session, None)
        finally:
            driver.terminate()


def _request(method: str, address: str, body: dict[str, Any] | None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["value"]
