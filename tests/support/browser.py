"""A headless Chromium for tests, with its console messages and network requests."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs a browser: apt install chromium chromium-driver")
QUIET = ("disable-quic", "no-first-run", "disable-background-networking", "disable-component-update", "disable-sync")


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """Start the browser with a profile folder, yield its driver, and quit it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    flags = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,900", *QUIET)
    for flag in (*flags, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def console_messages(driver: Any) -> list[str]:
    """Return the console messages since the last call."""
    return [entry["message"] for entry in driver.get_log("browser")]


def requested_hosts(driver: Any) -> set[str]:
    """Return scheme and host of all requests since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return {f"{urlsplit(url).scheme}:{urlsplit(url).hostname or ''}" for url in sent}


def resize(driver: Any, width: int, height: int) -> None:
    """Set the size of the page. A window can't be as narrow as a phone."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer_color_scheme(driver: Any, scheme: str) -> None:
    """Set the color scheme that the system prefers, "light" or "dark"."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
