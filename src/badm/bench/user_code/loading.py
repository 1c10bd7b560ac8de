"""Execute a file of the user's as a module, once per process and version."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from badm.bench.errors import described, error_location
from badm.bench.files import os_error_reason
from badm.bench.user_code.local_modules import LOADED, PREFIX, LocalModules
from badm.processes.signals import raised_by_signal


@dataclass(frozen=True)
class LoadedFile:
    """A file that was executed; ``version`` is a digest of it and of its local modules."""

    path: Path  # as the user wrote it, for messages
    file: Path  # from the folder that relative paths start at
    module: ModuleType
    version: str


def in_file(source: str) -> tuple[Path, str] | None:
    """Split ``my.py:name`` into the file and the name; ``None`` if it is no file.

    >>> in_file("my.py:Mine"), in_file("my.py"), in_file("digits")
    ((PosixPath('my.py'), 'Mine'), (PosixPath('my.py'), ''), None)
    """
    match = re.fullmatch(r"(.*\.py)(?::(.*))?", source)
    return (Path(match[1]), match[2] or "") if match else None


def load(
    path: Path, folder: Path, *, unknown: type[ValueError], raised: type[Exception]
) -> LoadedFile:
    """Load a file; relative paths start from ``folder``.

    Args:
        path: The file.
        folder: What a relative path starts from; the user's code may change directory.
        unknown: What to raise if the file cannot be read.
        raised: What to raise if its code raises.
    """
    file = folder / path
    modules = LocalModules(file, _read(path, file, unknown))
    where = hashlib.sha256(os.fsencode(file)).hexdigest()[:12]
    name = f"{PREFIX}{where}_{modules.version}"
    known = LOADED.get(name)
    if known is not None and known.unchanged():
        return LoadedFile(path, file, sys.modules[name], known.version)
    LOADED.pop(name, None)
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    try:
        with modules.importable():
            # Not with importlib, whose cache might return an older version.
            exec(compile(modules.content, str(file), "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if raised_by_signal(error):
            raise
        in_it = any(f.filename == str(file) for f in traceback.extract_tb(error.__traceback__))
        where = (
            f" ({error_location(error, str(file))})" if in_it else ""
        )  # there is none for a syntax error
        raise raised(f"{path} cannot be imported: {described(error)}{where}") from error
    modules.settle()
    LOADED[name] = modules
    modules.stay_importable()
    return LoadedFile(path, file, module, modules.version)


def _read(path: Path, file: Path, unknown: type[ValueError]) -> bytes:
    try:
        if file.is_file():  # reading a pipe could block for ever
            return file.read_bytes()
        missing = not file.exists()
    except OSError as error:
        raise unknown(f"{path} cannot be read: {os_error_reason(error)}") from None
    raise unknown(f"there is no file {path}" if missing else f"{path} is not a file")
