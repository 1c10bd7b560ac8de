"""Files from their publishers, kept only if they are, byte for byte, the ones that are known."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from badm.bench.data.dataset import FetchFailed, ProgressCallback

SECONDS = 30  # without an answer
CHUNK = 1 << 20


@dataclass(frozen=True)
class Download:
    """Where a file is, how many bytes it has, its checksum, and its name if the URL has none."""

    url: str
    size: int
    sha256: str
    file_name: str = ""

    @property
    def name(self) -> str:
        """
        >>> Download("https://example.org/sets/train.mat", 3, "").name
        'train.mat'
        """
        return self.file_name or self.url.rpartition("/")[2]

    def get(self, file: Path, report: ProgressCallback | None = None) -> None:
        """Write it to a file; ``FetchFailed`` says what went wrong."""
        digest, done = hashlib.sha256(), 0
        # Some servers answer nobody who does not say what he is.
        request = Request(self.url, headers={"User-Agent": "badm"})
        try:
            with urlopen(request, timeout=SECONDS) as source, open(file, "wb") as copy:
                # One byte more than there should be is enough to know that it is another file.
                while chunk := source.read(min(CHUNK, self.size + 1 - done)):
                    copy.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    if report:
                        report(self.name, min(done, self.size), self.size)
        except (OSError, HTTPException) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise FetchFailed(f"{self.url} could not be had ({reason})") from error
        if done != self.size:
            amount = "more than" if done > self.size else f"{done:,} of"
            raise FetchFailed(f"{self.url} gave {amount} the {self.size:,} bytes that it should")
        if digest.hexdigest() != self.sha256:
            raise FetchFailed(f"{self.url} is not what it was: it has another checksum")
