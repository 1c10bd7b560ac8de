"""A comparison in a small file: all its options, to run, to keep and to repeat it.

    # study.toml, for `badm compare study.toml`
    tasks = ["digits"]
    methods = ["badm", "adam"]
    seeds = 5

The names are those of the options of ``badm compare``. What is left out has its default.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from badm.bench import files, formatting
from badm.bench.errors import StoreError
from badm.bench.names import suggestion
from badm.bench.records.plans import Plan

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

ENDING = ".toml"
STUDY_BYTES = 1_000_000
WITH = "with"  # results that are shown in the same table

# Options that have other names than the fields of a plan.
NAMES = {"stated": "set", "epoch_budget": "epochs", "second_budget": "seconds"}


class StudyError(ValueError):
    """A study cannot be used; the message names the file, the key and what would be right."""


def is_study(source: str) -> bool:
    """Whether what stands in the place of a task is the file of a study.

    >>> is_study("study.toml"), is_study("digits"), is_study("my_task.py")
    (True, False, False)
    """
    return source.endswith(ENDING)


def read_study(path: Path | str) -> dict[str, Any]:
    """Read the options of a comparison, each under the name that ``compare`` has for it."""
    try:
        raw = files.read_bounded(Path(path), STUDY_BYTES)
    except FileNotFoundError:
        raise StudyError(f"there is no file {path}") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {files.os_error_reason(error)}") from None
    try:
        given = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StudyError(f"{path} is not TOML: {error}") from None
    options = {name: _checked(str(path), name, value) for name, value in given.items()}
    if not options.get("tasks"):
        raise StudyError(f'{path}: tasks must name at least one task, such as tasks = ["digits"]')
    for name, argument in ((WITH, "others"), ("set", "setting")):
        if name in options:
            options[argument] = options.pop(name)
    return options


def _checked(path: str, name: str, value: Any) -> Any:
    hints = {NAMES.get(field, field): hint for field, hint in typing.get_type_hints(Plan).items()}
    known = {**hints, WITH: tuple[str, ...]}
    if name not in known:
        near = suggestion(name, list(known))
        raise StudyError(f"{path}: there is no option {name!r}; {near}it may have {_listed(known)}")
    kind = _plain_kind(known[name])
    if kind is tuple:
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise StudyError(f"{path}: {name} must be a list of names, got {value!r}")
        return parts
    wanted = {int: "a whole number", float: "a number", str: "a text"}[kind]
    allowed = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, allowed):
        kind_given = formatting.type_name(value)
        raise StudyError(f"{path}: {name} must be {wanted}, got {value!r} ({kind_given})")
    return float(typing.cast(float, value)) if kind is float else value


def _plain_kind(hint: Any) -> type:
    """``int``, ``float``, ``str`` or ``tuple``, of the type of a field of the plan."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return str
    if origin in (typing.Union, types.UnionType):
        return _plain_kind(next(part for part in parts if part is not types.NoneType))
    kind: type = origin if origin is tuple else hint
    return kind


def _listed(known: Mapping[str, Any]) -> str:
    *most, last = known
    return f"{', '.join(most)} and {last}"


def study_of(plan: Plan, others: tuple[str, ...] = ()) -> dict[str, Any]:
    """The options that make a plan, without those that have their defaults.

    >>> study_of(Plan(("digits",), ("badm", "adam"), seeds=5, reference="badm"))
    {'tasks': ['digits'], 'methods': ['badm', 'adam'], 'seeds': 5, 'reference': 'badm'}
    """
    usual = Plan(plan.tasks, plan.methods)
    options: dict[str, Any] = {"tasks": list(plan.tasks), "methods": list(plan.methods)}
    for field in fields(Plan):
        value = getattr(plan, field.name)
        # The speed protocol has defaults of its own, so that what it has is always stated.
        stated = plan.protocol == "speed" and field.name in ("schedule", "warmup")
        if field.name not in options and (stated or value != getattr(usual, field.name)):
            options[NAMES.get(field.name, field.name)] = value
    return options | ({WITH: list(others)} if others else {})


def study_text(study: Mapping[str, Any]) -> str:
    """The file of a study.

    >>> print(study_text({"tasks": ["digits"], "seeds": 5, "warmup": 0.05}), end="")
    # Repeat it with `badm compare`.
    tasks = ["digits"]
    seeds = 5
    warmup = 0.05
    """
    # Texts, numbers and lists of texts are written alike in JSON and TOML.
    lines = [f"{name} = {json.dumps(value)}" for name, value in study.items()]
    return "\n".join(["# Repeat it with `badm compare`.", *lines]) + "\n"
