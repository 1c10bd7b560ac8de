"""Modules that a file of the user's imports from its own folder.

They are part of it: their contents are part of its version, and every version gets modules of
its own, even if this process has imported others of the same name from this or other folders.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType

PREFIX = "badm_task_"  # of the module names of task files
OURS = "badm"  # never a local module, not even of a task beside it


class LocalModules:
    """The local modules of a task as they are now, found from its import statements.

    Imports inside functions count as well. Dynamic imports are noticed when the file is executed.
    """

    def __init__(self, file: Path, content: bytes) -> None:
        self.folder = file.absolute().parent
        self.content = content
        self.sources: dict[str, bytes] = {}  # by path
        self.modules: dict[str, ModuleType] = {}
        self._read(content)
        self.version = self._version()

    def _read(self, content: bytes) -> None:
        """Read what a module imports, recursively."""
        todo = [(content, "")]
        while todo:
            for name in _imported(*todo.pop()):
                for path, package in _files(self.folder, name):
                    source = _content(path)
                    if source is not None and str(path) not in self.sources:
                        self.sources[str(path)] = source
                        todo += [(source, package)] if path.suffix == ".py" else []

    def _version(self) -> str:
        parts = [
            (Path(path).relative_to(self.folder).as_posix(), hashlib.sha256(source).hexdigest())
            for path, source in self.sources.items()
        ]
        own = hashlib.sha256(self.content).hexdigest()
        return hashlib.sha256(json.dumps([own, *sorted(parts)]).encode()).hexdigest()[:12]

    def settle(self) -> None:
        """Include dynamically imported modules in the version."""
        self.version = self._version()

    def unchanged(self) -> bool:
        """Whether all files are as they were read."""
        return all(_content(Path(path)) == source for path, source in self.sources.items())

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Let imports find these modules, as they were read, until the context ends."""
        removed = _remove_modules({str(self.folder), *FOLDERS})
        sys.modules.update(self.modules)
        folder, finder = str(self.folder), _Finder(self.folder, self.sources)
        others = [place for place in sys.path if place in FOLDERS]
        sys.path[:] = [folder, *(place for place in sys.path if place not in others)]
        places = [i for i, other in enumerate(sys.meta_path) if other is PathFinder]
        sys.meta_path.insert(places[0] if places else len(sys.meta_path), finder)
        importlib.invalidate_caches()  # they may be older than the folder's contents
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            with suppress(ValueError):  # a task may have removed it
                sys.path.remove(folder)
            sys.path += others
            self.modules = _remove_modules({folder})
            sys.modules.update(removed)

    def stay_importable(self) -> None:
        """Let functions that are called outside of a run import local modules, as they are then."""
        if str(self.folder) not in sys.path:
            sys.path.append(str(self.folder))
            FOLDERS.add(str(self.folder))


FOLDERS: set[str] = set()  # of task files, at the end of ``sys.path``


def _remove_modules(folders: set[str]) -> dict[str, ModuleType]:
    """Remove all modules in those folders from ``sys.modules``."""
    tops = {name for name, module in [*sys.modules.items()] if _within(name, module, folders)}
    names = [name for name in sys.modules if name.partition(".")[0] in tops]
    return {name: sys.modules.pop(name) for name in names}


def _within(name: str, module: ModuleType, folders: set[str]) -> bool:
    """Whether a module is in one of the folders, but not in a virtual environment inside it."""
    if "." in name or name in (OURS, "__main__") or name.startswith(PREFIX):
        return False
    facts = getattr(module, "__dict__", {})
    places = [*(facts.get("__path__") or [facts.get("__file__")])]
    return any(isinstance(place, str) and os.path.dirname(place) in folders for place in places)


LOADED: dict[str, LocalModules] = {}  # of executed task files, by module name


def local_imports(task: object) -> AbstractContextManager[None]:
    """A context in which a task of a file imports local modules of the version it was made with.

    Of a training function the file is that of the function it wraps.
    """
    modules = LOADED.get(getattr(task, "__wrapped__", type(task)).__module__)
    return nullcontext() if modules is None else modules.importable()


class _Finder(MetaPathFinder):
    """Finds modules in a folder, without Python's cache of its contents."""

    def __init__(self, folder: Path, sources: dict[str, bytes]) -> None:
        self.folder, self.sources = folder, sources

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] == OURS:
            return None
        inside = [p for p in path or () if Path(p).is_relative_to(self.folder)]
        for place in [str(self.folder)] if path is None else inside:
            finder = FileFinder(
                place,
                (ExtensionFileLoader, EXTENSION_SUFFIXES),
                (self._loader, SOURCE_SUFFIXES),  # type: ignore[arg-type]  # a class is expected
            )
            spec = finder.find_spec(name)
            if spec is not None and spec.loader is not None:
                return spec
        return None

    def _loader(self, name: str, path: str) -> _Loader:
        return _Loader(name, path, self.sources)


class _Loader(SourceFileLoader):
    """Loads a module from the contents read before, or reads and records them."""

    def __init__(self, name: str, path: str, sources: dict[str, bytes]) -> None:
        super().__init__(name, path)
        self.sources = sources

    def path_stats(self, path: str) -> Mapping[str, float]:
        # So that no bytecode is used: that of another version may have the same date.
        raise OSError

    def get_data(self, path: str) -> bytes:
        if path not in self.sources:
            self.sources[path] = super().get_data(path)
        return self.sources[path]


def _imported(content: bytes, package: str) -> Iterator[str]:
    """Yield the full names that a module imports or may import: ``from a import b``."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # importing it will raise
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(package, node.level)
            if base is not None:
                module = ".".join(filter(None, [base, node.module]))
                yield module
                yield from (".".join(filter(None, [module, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def _base(package: str, level: int) -> str | None:
    """Resolve the dots of a relative import."""
    parts = package.split(".") if package else []
    if level == 0:
        return ""
    return ".".join(parts[: len(parts) - level + 1]) if level <= len(parts) else None


def _files(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Yield the files in a folder that an import of that name executes, with their packages."""
    parts, place = name.split("."), folder
    if parts[0] == OURS:
        return
    for number, part in enumerate(parts, 1):
        if not part.isidentifier():
            return
        package, init = ".".join(parts[:number]), place / part / "__init__.py"
        modules = [place / f"{part}{end}" for end in (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES)]
        if init.is_file():
            yield init, package
        elif found := [module for module in modules if module.is_file()]:
            yield found[0], package.rpartition(".")[0]
            return
        elif not (place / part).is_dir():
            return
        place = place / part


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:  # importing it will raise
        return None
