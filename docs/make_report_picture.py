"""Take the picture of the report, docs/report.png, from the results of ``badm compare digits``.

    python docs/make_report_picture.py

Needs Chromium and its driver. The picture names the file that it was made from with its digest, and
a test fails when the results are no longer those of the picture.
"""

from __future__ import annotations

import base64
import hashlib
import io
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from badm.bench.records.comparisons import from_json
from badm.bench.report.page import write_page

ROOT = Path(__file__).parents[1]
SOURCE = "results/digits.json"
PICTURE = ROOT / "docs" / "report.png"
WIDTH, SHARPNESS = 1180, 1.25  # in pixels of the page, and pixels of the picture for each of them
COLOURS = 128

# The head, the first rows of the table and the curves; what folds or goes on below is left out.
SHORTEN = """
document.querySelectorAll("details, #theme").forEach((part) => part.hidden = true);
document.querySelectorAll("section").forEach((part) => {
  part.hidden ||= !["results", "curves"].includes(part.id);
  part.style.marginTop = "1.5rem";
});
const table = document.querySelector("#table");
const last = table.querySelectorAll("tbody tr")[4];
const height = last.getBoundingClientRect().bottom - table.getBoundingClientRect().top;
table.style.maxHeight = `${height}px`;
table.style.overflow = "hidden";
"""
SHOWN = "return Math.ceil(document.querySelector('#curves').getBoundingClientRect().bottom) + 16"
DRAWN = "return document.querySelectorAll('#curves-chart .scatterlayer .trace').length"


def photograph(driver: Any, page: Path) -> bytes:
    """Return the shortened page as a PNG."""
    size = {"width": WIDTH, "height": 1000, "deviceScaleFactor": SHARPNESS, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())
    driver.execute_script(SHORTEN)
    driver.execute_script("window.dispatchEvent(new Event('resize'))")
    while not driver.execute_script(DRAWN):
        pass
    height = driver.execute_script(SHOWN)
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
    taken = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
    )
    return base64.b64decode(taken["data"])


def main() -> None:
    sys.path.insert(0, str(ROOT))  # for the browser of the tests
    from tests.helpers.browser import browser

    results = (ROOT / SOURCE).read_bytes()
    with TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_page(from_json(results.decode()), page)
        with browser(Path(folder) / "profile") as driver:
            picture = photograph(driver, page)
    facts = PngInfo()
    facts.add_text("sources", f"{SOURCE} {hashlib.sha256(results).hexdigest()}")
    with Image.open(io.BytesIO(picture)) as image:
        few = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(PICTURE, pnginfo=facts, optimize=True)
    print(f"written: {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
