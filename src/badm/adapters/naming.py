"""Internal: what each parameter is, by its path: the rules of parameter_groups without a module."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from badm import metrics
from badm.adapters.axes import TO_HEADS, Shape
from badm.groups.outputs import FINAL, HEAD
from badm.groups.roles import TABLE, Kind

KINDS: tuple[Kind, ...] = ("matrix", "embedding", "output layer", "table", "vector")
DECAYED = ("matrix", "embedding", "output layer")

_EMBEDDINGS = ("embedding", "embeddings")  # of an Embed of Flax, an Embedding of Keras and of Haiku
_VECTORS = re.compile(r"bias(_|$)|^(scale|gamma|beta|A_log)$")
_KERNEL = re.compile(r"(^|_)kernel$|^(w|weight)$")
_PREDICTIONS = re.compile(r"^predictions?$")  # the heads of keras.applications
_NUMBERED = re.compile(r"^(.*?)_?(\d+)$")

Output = str | Sequence[str] | None


def kinds(shapes: Mapping[str, Shape], output: Output, *, ordered: bool) -> dict[str, Kind]:
    """Return what every parameter is, by its path with slashes.

    Args:
        shapes: Shapes by path.
        output: Patterns of the paths of output layers; ``None`` to find them by name.
        ordered: Whether paths are in the order of the layers, so that the last one is the output
            where none is named like one. Otherwise it is left open: the result has none.
    """
    outputs = set(_outputs(shapes, output, ordered))
    return {path: _kind(path, shape, path in outputs) for path, shape in shapes.items()}


def metric_of(metric: str, kind: Kind) -> str:
    """Return the metric that parameter_groups gives to parameters of a kind.

    >>> metric_of("kronecker", "output layer"), metric_of("spectral", "output layer")
    ('diagonal', 'spectral')
    """
    chosen = metrics.find(metric)
    suits = kind == "matrix" or (kind == "output layer" and chosen.suits_output_layer)
    return metric if suits else chosen.fallback


def matches(path: str, pattern: str) -> bool:
    """Return whether a pattern is that of a path, or of the path below some layer.

    >>> matches("model/dense/kernel", "dense/*"), matches("model/dense/kernel", "dense")
    (True, False)
    """
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"*/{pattern}")


def natural(path: str) -> list[tuple[int, int | str]]:
    """Return a key that sorts numbers in paths as numbers.

    >>> sorted(["Dense_10/kernel", "Dense_9/kernel"], key=natural)
    ['Dense_9/kernel', 'Dense_10/kernel']
    """
    parts = re.split(r"(\d+)", path)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


def _kind(path: str, shape: Shape, is_output: bool) -> Kind:
    name = path.rpartition("/")[2]
    if name in _EMBEDDINGS:
        return "embedding"
    if len(shape) < 2 or _VECTORS.search(name):
        return "vector"
    if is_output:
        return "output layer"
    if TABLE.search(name.lower()):
        return "table"
    # A map to or from one feature is still a map, with weight decay.
    is_map = math.prod(shape) > max(shape) or _KERNEL.search(name)
    return "matrix" if is_map else "vector"


def _outputs(shapes: Mapping[str, Shape], output: Output, ordered: bool) -> Iterator[str]:
    maps = [path for path, shape in shapes.items() if _kind(path, shape, False) == "matrix"]
    if output is not None:
        yield from _told(maps, (output,) if isinstance(output, str) else output)
        return
    heads: dict[str, str] = {}
    for path in maps if ordered else sorted(maps, key=natural):
        if (head := _head(path, maps, 1 if ordered else 0)) is not None:
            heads[head] = path  # of a head with several layers the last
    # What is inside a head tells more: pooler/head/classifier is one output, not two.
    inner = [h for h in heads if not any(other.startswith(f"{h}/") for other in heads)]
    yield from (heads[head] for head in inner)
    if not inner and maps:
        last = maps[-1] if ordered else _last_by_number(maps)
        if last is not None:
            yield last


def _told(maps: Sequence[str], patterns: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        found = [p for p in maps if matches(p, pattern) or matches(p, f"{pattern}/*")]
        if not found:
            raise ValueError(
                f"output must name layers with a matrix, got {pattern!r}, which matches none of "
                f"{', '.join(maps[-3:]) or 'no matrices'}"
            )
        yield from found


def _head(path: str, maps: Sequence[str], deepest: int) -> str | None:
    """Return the path of the innermost head that a matrix is in; None if it is in none.

    Plain names such as ``out`` count down to a depth: further inside they are parts of attentions.
    """
    layers = path.split("/")[:-1]
    for depth in reversed(range(len(layers))):
        name, head = _words(layers[depth]), "/".join(layers[: depth + 1])
        if depth <= deepest and name in FINAL:
            return head
        named = HEAD.search(name) or _PREDICTIONS.search(name)
        inside = [p[len(head) + 1 :].split("/") for p in maps if p.startswith(f"{head}/")]
        attends = any(part in TO_HEADS for parts in inside for part in parts)
        if named and not attends and not _is_repeated(layers[:depth], maps):
            return head
    return None


def _words(name: str) -> str:
    """Return the name of a layer in small letters, without the number that Flax appends.

    >>> _words("ClassifierHead_0")
    'classifier_head'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub(r"_\d+$", "", name)).lower()


def _is_repeated(layers: Sequence[str], maps: Sequence[str]) -> bool:
    """Return whether a path leads through one of several blocks that differ by their number."""
    for depth, name in enumerate(layers):
        if (match := _NUMBERED.match(name)) is None:
            continue
        around = "/".join(layers[:depth])
        start = f"{around}/{match[1]}" if around else match[1]
        if any(
            path.startswith(start) and not path.startswith(f"{'/'.join(layers[: depth + 1])}/")
            for path in maps
        ):
            return True
    return False


def _last_by_number(maps: Sequence[str]) -> str | None:
    """Return the last matrix where layers are numbered, as Flax does; None if that says nothing.

    Paths of a tree are sorted by name. With layers of several kinds, the last dense one counts.
    """
    tops = [_NUMBERED.match(path.partition("/")[0]) for path in maps]
    if not all(tops):
        return None
    stems = {match[1] for match in tops if match is not None}
    stem = next(iter(stems)) if len(stems) == 1 else "Dense"
    of_stem = [p for p, match in zip(maps, tops, strict=True) if match and match[1] == stem]
    return max(of_stem, key=natural, default=None)
