"""The file of a run while it is written, and the checkpoint beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from badm.bench import store
from badm.bench.schema import TEXT
from badm.bench.store import Config, Point, Result, Store


class BadCheckpoint(Exception):
    """There was a checkpoint that cannot be used; it is set aside."""


class Journal:
    """Writes down what happens, so that at any moment the files tell how to go on."""

    def __init__(self, config: Config, folder: Store) -> None:
        self.config, self.folder = config, folder
        self.path, self.checkpoint_path = folder.path(config), folder.checkpoint(config)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.opened: IO[bytes] | None = None

    @property
    def file(self) -> IO[bytes]:
        assert self.opened is not None, "neither begun nor resumed"
        return self.opened

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()

    def begin(self, environment: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """A new file, in place of one whose run has not ended."""
        # A checkpoint that is still there belongs to a file that is not.
        self.checkpoint_path.unlink(missing_ok=True)
        first = store.header(self.config, environment, facts)
        store.write_atomically(self.path, first)
        self.opened = self.path.open("r+b")
        self.opened.seek(len(first))

    def write(self, point: Point) -> None:
        self.file.write(store.line(asdict(point)))
        self.file.flush()

    def exhibit(self, step: int, shown: Mapping[str, bytes | str]) -> dict[str, str]:
        """Put what a task shows into files; their names by title."""
        folder, names = self.folder.exhibits(self.config), {}
        folder.mkdir(exist_ok=True)
        for number, (title, content) in enumerate(shown.items()):
            names[title] = f"{step}-{number}.{'txt' if isinstance(content, str) else 'png'}"
            raw = content.encode(errors="replace") if isinstance(content, str) else content
            store.write_atomically(folder / names[title], raw)
        return names

    def checkpoint(self, content: Mapping[str, Any]) -> None:
        """Save what a restart needs, with how much of the file belongs to it."""
        self._sync()
        store.save_tensors(self.checkpoint_path, {"written": self.file.tell(), **content})

    def _written(self, saved: Mapping[str, Any]) -> int:
        """How much of the file belongs to a checkpoint; ``ValueError`` if it has not as much."""
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
        """Go back to the checkpoint, if there is one, and forget what came after it."""
        if not self.checkpoint_path.exists() or not self.path.exists():
            return False
        try:
            saved = store.load_tensors(self.checkpoint_path)
            written = self._written(saved)
            restore(saved)
        except Exception as error:  # whatever a damaged file makes torch.load raise
            self.folder.set_aside(self.checkpoint_path)
            raise BadCheckpoint from error
        self.opened = self.path.open("r+b")
        self.opened.truncate(written)
        self.opened.seek(written)
        return True

    def tidy(self, step: int | None) -> None:
        """There is one checkpoint at a time: nothing to do."""

    def forget(self) -> None:
        """Do without the checkpoint, as another rank cannot use its own."""
        if self.checkpoint_path.exists():
            self.folder.set_aside(self.checkpoint_path)

    def end(self, result: Result) -> None:
        short = replace(result, message=result.message[:TEXT])
        self.file.write(store.line({"result": asdict(short)}))
        self._sync()
        self.checkpoint_path.unlink(missing_ok=True)

    def _sync(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())


class Shadow(Journal):
    """Of a rank that is not the first: it writes nothing but its part of every checkpoint.

    Parts carry their step in their names and are kept until the next checkpoint is whole.
    """

    def __init__(self, config: Config, folder: Store, rank: int) -> None:
        super().__init__(config, folder)
        self.stem = f"{self.checkpoint_path.name}.rank{rank}.step"

    def part(self, step: int) -> Path:
        return self.checkpoint_path.with_name(f"{self.stem}{step}")

    def begin(self, environment: Mapping[str, Any], facts: Mapping[str, Any]) -> None: ...

    def write(self, point: Point) -> None: ...

    def checkpoint(self, content: Mapping[str, Any]) -> None:
        store.save_tensors(self.part(content["state"]["step"]), content)

    def resume(self, restore: Callable[[Mapping[str, Any]], None], step: int | None = None) -> bool:
        assert step is not None
        try:
            restore(store.load_tensors(self.part(step)))
        except Exception as error:  # whatever a missing or damaged file makes torch.load raise
            raise BadCheckpoint from error
        return True

    def tidy(self, step: int | None) -> None:
        """Remove all parts but that of a step."""
        for part in self.checkpoint_path.parent.glob(f"{self.stem}*"):
            if step is None or part != self.part(step):
                part.unlink(missing_ok=True)

    def forget(self) -> None:
        self.tidy(None)
