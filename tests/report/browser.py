"""Chromium without a window, driven by selenium through the driver that is installed; nothing is downloaded."""

import json
import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

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
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for argument in (*ARGUMENTS, f"--user-data-dir={self._profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        # With both paths given selenium neither looks for a browser nor downloads one.
        service = Service(executable_path=shutil.which("chromedriver"))
        with patch.dict(os.environ, {"no_proxy": "localhost,127.0.0.1"}):
            self._driver = Chrome(options=options, service=service)
        self._driver.set_script_timeout(240)  # on a busy machine, rules of a whole page take longer than usual
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._driver.quit()

    def go(self, url: str) -> None:
        """Open an address."""
        self._driver.get(url)

    def windows(self) -> list[str]:
        """Return the windows and tabs that are open."""
        return list(self._driver.window_handles)

    def switch(self, window: str) -> None:
        """Look at another window."""
        self._driver.switch_to.window(window)

    def picture(self) -> bytes:
        """Return what the window shows as PNG."""
        return self._driver.get_screenshot_as_png()

    def size(self, width: int, height: int) -> None:
        """Make the page as wide and as high as that, in CSS pixels."""
        params = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", params)

    def open(self, path: Path, *, within_s: float = 240) -> None:
        """Open a report and wait until it has drawn itself."""
        self.go(path.resolve().as_uri())
        until = time.monotonic() + within_s
        while not self.run("return document.documentElement.dataset.readyMs || document.querySelector('[role=alert]')"):
            assert time.monotonic() < until, "the page did not draw itself"
            time.sleep(0.05)

    def tabs(self) -> list[str]:
        """Return the ids of the page's tabs."""
        return list(self.run("return [...document.querySelectorAll('[role=tab]')].map((t) => t.id)"))

    def show(self, tab: str) -> None:
        """Show a tab by its name."""
        self.run(f"document.getElementById('tab-{tab}').click()")

    def unfold(self) -> None:
        """Draw every tab and open everything that is folded, which is made when it is opened."""
        for tab in reversed(self.tabs()):
            self.show(tab.removeprefix("tab-"))
        self.waited(
            "[...document.querySelectorAll('details')].map((d) => {"
            " const whole = d.open && d.children.length > 1; d.open = true; return whole }).every(Boolean)"
        )

    def prefer(self, scheme: str) -> None:
        """Let the system prefer `light` or `dark`."""
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)

    def media(self, kind: str) -> None:
        """Let pages be drawn for `print`, or as usual for an empty text."""
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind})

    def run(self, script: str, *given: Any) -> Any:
        """Return what a script in the page returns; `given` are its arguments."""
        return self._driver.execute_script(script, *given)

    def count_main_thread(self) -> None:
        """Let the main thread's CPU time be counted from here on."""
        self._driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})

    def main_thread_ms(self) -> float:
        """Return the CPU time of the page's main thread so far."""
        found = self._driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return 1000 * float(next(m["value"] for m in found if m["name"] == "ThreadTime"))

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
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last call, but for the browser's own pages."""
        entries = self._driver.get_log("performance")
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [s["request"]["url"] for s in sent if not s["documentURL"].startswith("chrome:")]
