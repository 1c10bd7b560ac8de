"""Downloads from publishers, kept only if their checksum is the recorded one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from badm.bench.data.dataset import FetchFailed, ProgressCallback

SECONDS = 30  # timeout
CHUNK = 1 << 20


@dataclass(frozen=True)
class Download:
    """A file on the web.

    Attributes:
        url: Where it is.
        size: Bytes.
        sha256: Checksum that the download must have.
        file_name: Its name, if that is not the end of the URL.
    """

    url: str
    size: int
    sha256: str
    file_name: str = ""

    @property
    def name(self) -> str:
        """The name of the file.

        >>> Download("https://example.org/sets/train.mat", 3, "").name
        'train.mat'
        """
        return self.file_name or self.url.rpartition("/")[2]

    def get(self, file: Path, report: ProgressCallback | None = None) -> None:
        """Download to a file; ``FetchFailed`` says what went wrong."""
        digest, done = hashlib.sha256(), 0
        # Some servers refuse requests without a user agent.
        request = Request(self.url, headers={"User-Agent": "badm"})
        try:
            with urlopen(request, timeout=SECONDS) as source, open(file, "wb") as copy:
                # One byte too many is enough to know that it is another file.
                while chunk := source.read(min(CHUNK, self.size + 1 - done)):
                    copy.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    if report:
                        report(self.name, min(done, self.size), self.size)
        except (OSError, HTTPException) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise FetchFailed(f"{self.url} could not be downloaded ({reason})") from error
        if done != self.size:
            amount = "more than" if done > self.size else f"{done:,} of"
            raise FetchFailed(f"{self.url} returned {amount} the expected {self.size:,} bytes")
        if digest.hexdigest() != self.sha256:
            raise FetchFailed(f"{self.url} has changed: its checksum is not the recorded one")
