"""Building dataclasses from JSON, with checks.

Files come from other versions, machines and people. Readers build their contents with
:func:`build`; the result has the types that its class states, at every depth, and needs no more
checks.
"""

from __future__ import annotations

import math
import re
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, cast

DEPTH = 32  # of nesting
TEXT = 1_000_000  # characters of a string
WHOLE = 2**63  # larger integers are refused

T = TypeVar("T")


class SchemaError(ValueError):
    """Data do not match their class; the message says where and how."""


@dataclass(frozen=True)
class Between:
    """Marks a number with limits, both inclusive."""

    low: float
    high: float = math.inf


@dataclass(frozen=True)
class Null:
    """Marks a number that may be infinite or NaN: null in JSON is read as ``value``."""

    value: float


Count = Annotated[int, Between(0)]
Amount = Annotated[float, Between(0)]
Time = Annotated[float, Null(math.inf)]  # to a target; infinite if missed
Measured = Annotated[float, Null(math.nan)]  # NaN if it diverged


def build(kind: type[T], plain: Any) -> T:
    """Build ``kind`` from JSON data; ``SchemaError`` names the first place that does not match.

    ``kind`` is a dataclass of numbers, strings, literals, lists, dicts and other dataclasses.
    Fields with a default may be missing. A ``TypedDict`` may have more keys than it states, a
    dataclass may not.

    >>> @dataclass
    ... class Reading:
    ...     step: Count
    ...     scores: dict[str, float]
    >>> build(Reading, {"step": 3, "scores": {"accuracy": 0.5}})
    Reading(step=3, scores={'accuracy': 0.5})
    >>> build(Reading, {"step": 3, "scores": {"accuracy": "high"}})
    Traceback (most recent call last):
    badm.bench.records.schema.SchemaError: scores.accuracy must be a number, got 'high'
    """
    return cast(T, _built(kind, plain, "", 0))


def _built(kind: Any, plain: Any, where: str, depth: int) -> Any:
    if depth > DEPTH:
        raise SchemaError(f"{_shown(where)} must not be nested more than {DEPTH} times")
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _plain(plain, where, depth)
    if origin is Annotated:
        return _marked(parts[0], parts[1], plain, where)
    if origin in (Union, types.UnionType):
        (one,) = (part for part in parts if part is not types.NoneType)
        return None if plain is None else _built(one, plain, where, depth)
    if origin is Literal:
        if not any(plain == one and type(plain) is type(one) for one in parts):
            _refuse(where, " or ".join(map(repr, parts)), plain)
        return plain
    if origin in (list, tuple, Sequence):
        if not isinstance(plain, (list, tuple)):
            _refuse(where, "a list", plain)
        every = [_built(parts[0], x, f"{where}[{i}]", depth + 1) for i, x in enumerate(plain)]
        return tuple(every) if origin is tuple else every
    if origin in (dict, Mapping):
        return {
            _key(parts[0], key, where): _built(parts[1], value, _within(where, key), depth + 1)
            for key, value in _object(plain, where).items()
        }
    if is_dataclass(kind):
        return _dataclass(kind, plain, where, depth)
    if typing.is_typeddict(kind):
        hints, given = _hints(kind), _object(plain, where)
        _require(kind.__required_keys__, given, where)
        return {
            name: _built(hints.get(name, Any), value, _within(where, name), depth + 1)
            for name, value in given.items()
        }
    return _scalar(kind, plain, where)


def _dataclass(kind: Any, plain: Any, where: str, depth: int) -> Any:
    hints, given = _hints(kind), _object(plain, where)
    _require(_required(kind), given, where)
    for name in given:
        if name not in hints:
            raise SchemaError(f"{_shown(where)} must not have a field {reprlib.repr(name)}")
    built = {
        name: _built(hints[name], value, _within(where, name), depth + 1)
        for name, value in given.items()
    }
    return kind(**built)


def _marked(kind: Any, mark: Between | Null, plain: Any, where: str) -> Any:
    if isinstance(mark, Null):
        return mark.value if plain is None else _scalar(kind, plain, where, finite=False)
    value = _scalar(kind, plain, where)
    if not mark.low <= value <= mark.high:
        end = "" if mark.high == math.inf else f" and at most {mark.high}"
        _refuse(where, f"at least {mark.low}{end}", plain)
    return value


def _scalar(kind: Any, plain: Any, where: str, *, finite: bool = True) -> Any:
    if kind is str:
        return _text(plain, where)
    if kind is bool:
        return plain if isinstance(plain, bool) else _refuse(where, "true or false", plain)
    assert kind in (int, float), f"no schema for {kind}"
    is_number = isinstance(plain, int if kind is int else (int, float))
    if not is_number or isinstance(plain, bool):
        _refuse(where, "a whole number" if kind is int else "a number", plain)
    if isinstance(plain, int) and not -WHOLE < plain < WHOLE:
        raise SchemaError(f"{_shown(where)} must be less than 2⁶³")
    if finite and not math.isfinite(plain):
        _refuse(where, "a finite number", plain)
    return plain


def _text(plain: Any, where: str) -> str:
    if not isinstance(plain, str):
        _refuse(where, "a text", plain)
    if len(plain) > TEXT:
        raise SchemaError(f"{_shown(where)} must have at most {TEXT:,} characters")
    if re.search("[\ud800-\udfff]", plain):  # lone surrogates, which cannot be encoded
        _refuse(where, "text in Unicode", plain)
    return plain


def _plain(value: Any, where: str, depth: int) -> Any:
    """Check data of any JSON type."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return _built(dict[str, Any], value, where, depth)
    if isinstance(value, (list, tuple)):
        return _built(list[Any], value, where, depth)
    return _scalar(str if isinstance(value, str) else float, value, where)


def _key(kind: Any, key: Any, where: str) -> Any:
    _text(key, f"a name in {_shown(where)}")
    if kind is str:
        return key
    if not re.fullmatch(r"0|[1-9][0-9]{0,17}", key):  # keys are strings in JSON
        _refuse(f"a name in {_shown(where)}", "a whole number", key)
    return int(key)


def _object(plain: Any, where: str) -> Mapping[Any, Any]:
    return plain if isinstance(plain, Mapping) else _refuse(where, "an object", plain)


def _require(names: typing.Iterable[str], given: Mapping[Any, Any], where: str) -> None:
    for name in sorted(names):
        if name not in given:
            raise SchemaError(f"{_within(where, name)} is missing")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


@cache
def _required(kind: Any) -> frozenset[str]:
    return frozenset(
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    )


def _within(where: str, name: Any) -> str:
    name = name if isinstance(name, str) and name.isidentifier() else reprlib.repr(name)
    return f"{where}.{name}" if where else name


def _shown(where: str) -> str:
    return where or "it"


def _refuse(where: str, wanted: str, plain: Any) -> NoReturn:
    raise SchemaError(f"{_shown(where)} must be {wanted}, got {reprlib.repr(plain)}")
