"""The site: it builds without a warning, links lead somewhere, and it fits a phone, offline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import badm
from tests.helpers import ROOT
from tests.helpers.browser import browser

PHONE = 390  # pixels; the width of most of them


@pytest.fixture(scope="module")
def check_links() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return import_module("check_links")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as ``make docs`` builds it."""
    for needed in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(needed, reason="needs the docs extra: make .venv/.installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "."]
    built = subprocess.run([*command, folder], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.mark.slow
def test_the_site_has_every_page_of_docs_and_results(site: Path) -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md")]
    built = [site / page.relative_to(ROOT).with_suffix(".html") for page in pages]
    assert len(built) > 30
    assert [page for page in built if not page.is_file()] == []
    assert 'url=docs/index.html"' in (site / "index.html").read_text()


@pytest.mark.slow
def test_the_reference_documents_every_public_name(site: Path, check_links: ModuleType) -> None:
    api = site / "docs" / "api"
    for page, module in (("badm", badm), ("metrics", badm.metrics), ("bench", badm.bench)):
        ids = check_links.read(api / f"{page}.html").ids
        names = [name for name in module.__all__ if isinstance(getattr(module, name), type)]
        assert len(names) > 2
        assert [n for n in names if not any(i.endswith(f".{n}") for i in ids)] == [], page


@pytest.mark.slow
def test_a_page_needs_nothing_from_the_network(site: Path, check_links: ModuleType) -> None:
    """A link may lead away; what a page is made of may not."""
    for file in site.rglob("*.html"):
        page = check_links.read(file)
        assert [a for a in page.parts if "//" in a] == [], file.name


def test_a_link_that_leads_nowhere_is_found(check_links: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="here"></h1><a href="#here">1</a><a href="b.html#there">2</a>'
        '<a href="#nowhere">3</a><a href="b.html#nowhere">4</a><img src="no.png">'
        '<a href="https://example.org/no">5</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="there"></h1><a href="a.html">6</a>')
    assert list(check_links.broken_links(tmp_path)) == [
        "a.html: #nowhere",
        "a.html: b.html#nowhere",
        "a.html: no.png",
    ]


@pytest.mark.slow
@pytest.mark.browser
def test_no_page_is_wider_than_a_phone(site: Path, driver: Any) -> None:
    """Tables and code scroll within the page, which itself never scrolls sideways."""
    screen = {"width": PHONE, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    wide = {}
    for file in sorted((site / "docs").rglob("*.html")) + sorted(
        (site / "results").rglob("*.html")
    ):
        driver.get(file.as_uri())
        width = driver.execute_script("return document.documentElement.scrollWidth")
        if width > PHONE:
            wide[file.name] = width
    assert wide == {}


@pytest.mark.slow
@pytest.mark.browser
def test_the_site_is_dark_where_the_reader_prefers_that(site: Path, driver: Any) -> None:
    driver.get((site / "docs" / "index.html").as_uri())

    def background(preferred: str) -> str:
        media = {"features": [{"name": "prefers-color-scheme", "value": preferred}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        return str(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))

    assert background("light") == "rgb(255, 255, 255)"
    red = int(background("dark").removeprefix("rgb(").partition(",")[0])
    assert red < 64
