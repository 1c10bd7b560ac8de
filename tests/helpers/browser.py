"""A browser without a network, for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REQUIRED = os.environ.get("BADM_BROWSER") == "required"  # then whatever is missing is a failure

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """Start Chromium with a profile of its own, or skip the test where there is none."""
    if not REQUIRED:
        pytest.importorskip("selenium")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        missing = "chromium and chromedriver must be installed"
        if REQUIRED:
            pytest.fail(f"BADM_BROWSER=required, and {missing}")
        pytest.skip(missing)
    options = Options()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Both programs are named, so that Selenium has nothing to look for, and must not.
    os.environ["SE_OFFLINE"] = "true"
    started = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield started
    finally:
        started.quit()
