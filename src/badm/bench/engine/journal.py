"""Write the file of a run, and the checkpoint beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from badm.bench import files
from badm.bench.records import runs
from badm.bench.records.runs import RunConfig, RunResult, RunStore, TrajectoryPoint
from badm.bench.records.schema import TEXT


class BadCheckpoint(Exception):
    """There was a checkpoint that cannot be used; it has been renamed."""


class RunJournal:
    """Writes the files of a run such that it can be resumed from them at any moment."""

    def __init__(self, config: RunConfig, store: RunStore) -> None:
        self.config, self.store = config, store
        self.path, self.checkpoint_path = store.path(config), store.checkpoint(config)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._opened: IO[bytes] | None = None

    @property
    def file(self) -> IO[bytes]:
        assert self._opened is not None, "begin or resume comes first"
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def begin(self, environment: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Start a new file, in place of one whose run has not ended."""
        # A checkpoint that still exists belongs to a file that does not.
        self.checkpoint_path.unlink(missing_ok=True)
        first = runs.header(self.config, environment, facts)
        files.write_atomically(self.path, first)
        self._opened = self.path.open("r+b")
        self._opened.seek(len(first))

    def write(self, point: TrajectoryPoint) -> None:
        self.file.write(runs.json_line(asdict(point)))
        self.file.flush()

    def save_artifacts(self, step: int, artifacts: Mapping[str, bytes | str]) -> dict[str, str]:
        """Save artifacts to files, and return the names of these by title."""
        folder, names = self.store.artifacts(self.config), {}
        folder.mkdir(exist_ok=True)
        for number, (title, content) in enumerate(artifacts.items()):
            names[title] = f"{step}-{number}.{'txt' if isinstance(content, str) else 'png'}"
            raw = content.encode(errors="replace") if isinstance(content, str) else content
            files.write_atomically(folder / names[title], raw)
        return names

    def checkpoint(self, content: Mapping[str, Any]) -> None:
        """Save what a restart needs, with how much of the run file belongs to it."""
        self._sync()
        files.save_tensors(self.checkpoint_path, {"written": self.file.tell(), **content})

    def _written(self, saved: Mapping[str, Any]) -> int:
        """Return how much of the file belongs to a checkpoint; ``ValueError`` if it is shorter."""
        written = saved["written"]
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if not isinstance(written, int) or not 0 < written <= size:
                raise ValueError("the run file is shorter than at the time of its checkpoint")
            file.seek(written - 1)
            if file.read(1) != b"\n":
                raise ValueError("the run file has no line that ends where its checkpoint was made")
        return written

    def resume(self, restore: Callable[[Mapping[str, Any]], None], step: int | None = None) -> bool:
        """Load the checkpoint, if there is one, and drop what was written after it."""
        if not self.checkpoint_path.exists() or not self.path.exists():
            return False
        try:
            saved = files.load_tensors(self.checkpoint_path, self.config.device)
            written = self._written(saved)
            restore(saved)
        except Exception as error:  # whatever a damaged file makes torch.load raise
            self.store.quarantine(self.checkpoint_path)
            raise BadCheckpoint from error
        self._opened = self.path.open("r+b")
        self._opened.truncate(written)
        self._opened.seek(written)
        return True

    def prune(self, step: int | None) -> None:
        """Do nothing: there is one checkpoint at a time."""

    def discard_checkpoint(self) -> None:
        """Discard the checkpoint, because another rank cannot use its own."""
        if self.checkpoint_path.exists():
            self.store.quarantine(self.checkpoint_path)

    def end(self, result: RunResult) -> None:
        short = replace(result, message=result.message[:TEXT])
        self.file.write(runs.json_line({"result": asdict(short)}))
        self._sync()
        self.checkpoint_path.unlink(missing_ok=True)

    def _sync(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())


class RankJournal(RunJournal):
    """The journal of a rank that is not the first: it writes its part of every checkpoint.

    Parts have their step in their names and are kept until the next checkpoint is complete.
    """

    def __init__(self, config: RunConfig, store: RunStore, rank: int) -> None:
        super().__init__(config, store)
        self.stem = f"{self.checkpoint_path.name}.rank{rank}.step"

    def part_path(self, step: int) -> Path:
        return self.checkpoint_path.with_name(f"{self.stem}{step}")

    def begin(self, environment: Mapping[str, Any], facts: Mapping[str, Any]) -> None: ...

    def write(self, point: TrajectoryPoint) -> None: ...

    def checkpoint(self, content: Mapping[str, Any]) -> None:
        files.save_tensors(self.part_path(content["state"]["step"]), content)

    def resume(self, restore: Callable[[Mapping[str, Any]], None], step: int | None = None) -> bool:
        assert step is not None
        try:
            restore(files.load_tensors(self.part_path(step), self.config.device))
        except Exception as error:  # whatever a missing or damaged file makes torch.load raise
            raise BadCheckpoint from error
        return True

    def prune(self, step: int | None) -> None:
        """Remove all parts but the one of that step."""
        for part in self.checkpoint_path.parent.glob(f"{self.stem}*"):
            if step is None or part != self.part_path(step):
                part.unlink(missing_ok=True)

    def discard_checkpoint(self) -> None:
        self.prune(None)
