"""Chromium without a window, driven over the plain HTTP of its driver, so that no package is needed for it."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--window-size=1280,1000", "--disable-dev-shm-usage",
)  # fmt: skip


def why_no_browser() -> str | None:
    """Return why pages cannot be opened here, None where they can."""
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return f"needs {' and '.join(missing)} (Debian: chromium, chromium-driver)" if missing else None


class Browser:
    """One browser with an empty profile, for the time of a `with` block."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile

    def __enter__(self) -> "Browser":
        self._driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        self._port = self._announced_port()
        options = {
            "binary": shutil.which("chromium"),
            "args": [*ARGUMENTS, f"--user-data-dir={self._profile}"],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self._session = ""
        started = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{started['sessionId']}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if self._session:
                self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(10)

    def go(self, url: str) -> None:
        """Open an address."""
        self._call("POST", "/url", {"url": url})

    def windows(self) -> list[str]:
        """Return the windows and tabs that are open."""
        return list(self._call("GET", "/window/handles"))

    def switch(self, window: str) -> None:
        """Look at another window."""
        self._call("POST", "/window", {"handle": window})

    def picture(self) -> bytes:
        """Return what the window shows as PNG."""
        return base64.b64decode(self._call("GET", "/screenshot"))

    def size(self, width: int, height: int) -> None:
        """Make the page as wide and as high as that, in CSS pixels."""
        params = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": params})

    def open(self, path: Path, *, within_s: float = 240) -> None:
        """Open a report and wait until it has drawn itself."""
        self.go(path.resolve().as_uri())
        until = time.monotonic() + within_s
        while not self.run("return document.documentElement.dataset.readyMs || document.querySelector('[role=alert]')"):
            assert time.monotonic() < until, "the page did not draw itself"
            time.sleep(0.05)

    def prefer(self, scheme: str) -> None:
        """Let the system prefer `light` or `dark`."""
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": features})

    def run(self, script: str) -> Any:
        """Return what a script in the page returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def zoom(self) -> float:
        """Zoom into the timeline by key and return how many milliseconds drawing it took."""
        self.run(
            "const c = document.querySelector('#timeline canvas'); delete c.dataset.drawMs;"
            "c.dispatchEvent(new KeyboardEvent('keydown', {key: 'w'}))"
        )
        return float(self.waited("document.querySelector('#timeline canvas').dataset.drawMs"))

    def waited(self, expression: str, *, within_s: float = 120) -> Any:
        """Return the value of an expression once it is true."""
        until = time.monotonic() + within_s
        while not (value := self.run(f"return {expression}")):
            assert time.monotonic() < until, f"{expression} did not become true"
            time.sleep(0.02)
        return value

    def console(self) -> list[str]:
        """Return what the page has written to its console since the last call, violations of its policy included."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last call, but for the browser's own pages."""
        entries = self._call("POST", "/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [s["request"]["url"] for s in sent if not s["documentURL"].startswith("chrome:")]

    def _announced_port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if "on port" in line and "successfully" in line:
                return int(line.rsplit("port", 1)[1].strip(" .\n"))
        raise AssertionError("chromedriver ended without saying its port")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{self._session}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=120) as answer:
            return json.loads(answer.read())["value"]
