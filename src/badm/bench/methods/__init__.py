"""Find methods by name; each family is one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from badm.bench.method import Method, Setting, Space
from badm.bench.methods import (
    anderson,
    badm_methods,
    dladmm,
    keras_methods,
    peers,
    sigmoid_admm,
    sisa,
    torch_methods,
)
from badm.bench.methods.own_methods import UnknownMethod, find_own
from badm.bench.methods.replicas import MODE_SEPARATOR, MODES, replicated
from badm.bench.methods.sources import in_brackets, read_settings, split_brackets
from badm.bench.names import suggestion
from badm.bench.paper import Paper

METHODS: dict[str, Method] = {
    method.name: method
    for family in (
        badm_methods,
        keras_methods,
        peers,
        sisa,
        torch_methods,
        dladmm,
        anderson,
        sigmoid_admm,
    )
    for method in family.METHODS
}


UNTOUCHED = "-untouched"  # after the name of a method: its defaults, nothing searched


def find(source: str, folder: Path | None = None) -> Method:
    """Find a method by name, or one of the user's own in a file or a package.

    ``adam+outer`` is adam on several ranks with mode outer. ``adam-untouched`` is adam at its
    defaults: nothing is searched. ``badm[beta=0.95]`` is badm with that memory, under that name,
    and ``mine.py:Mine`` an optimizer in a file.

    Args:
        source: The name, or the file or module and a name in it.
        folder: What relative paths start from. Default: the working directory.

    >>> find("adam").description
    'RMSprop with momentum and bias correction, as in Keras'
    >>> find("adam+outer").description
    'adam on several ranks; a BADM step with the mean displacement of the ranks'
    >>> find("adam-untouched").description
    'adam at its defaults, nothing searched'
    >>> find("badm[beta=0.95]").setting({})["beta"]
    0.95
    >>> find("adm")
    Traceback (most recent call last):
    badm.bench.methods.own_methods.UnknownMethod: there is no method 'adm'; did you mean adam or \
badm? `badm list methods` shows all
    """
    if source in METHODS:
        return METHODS[source]
    folder = folder or Path.cwd()
    base, text = split_brackets(source)
    if text is not None and base:
        return _with_settings(base, read_settings(base, text), folder)
    if source.endswith(UNTOUCHED):
        return _untouched(source.removesuffix(UNTOUCHED), folder)
    inner, mode = _split_mode(source)
    if mode is not None:
        if mode not in MODES:
            raise UnknownMethod(
                f"there is no replica mode {mode!r}; {suggestion(mode, MODES)}"
                f"There are {', '.join(MODES)}"
            )
        found = find(inner, folder)
        same = replicated(found, mode)
        return replace(same, fixed=found.fixed, source=_suffixed(found, f"{MODE_SEPARATOR}{mode}"))
    own = find_own(source, {}, folder)
    if own is None:
        raise _unknown(source)
    return own


def _split_mode(source: str) -> tuple[str, str | None]:
    """Split a replica mode from a method; a plus in the path of a file is none."""
    start = max(source.rfind(":"), source.rfind("]")) + 1
    inner, plus, mode = source[start:].partition(MODE_SEPARATOR)
    if not plus or source.endswith(".py"):
        return source, None
    return source[:start] + inner, mode


def _unknown(name: str) -> UnknownMethod:
    ending = UNTOUCHED if name.endswith(UNTOUCHED) else ""
    names = [f"{one}{ending}" for one in METHODS]
    return UnknownMethod(
        f"there is no method {name!r}; {suggestion(name, names)}`badm list methods` shows all"
    )


def _suffixed(method: Method, suffix: str) -> str:
    """What other processes find a method of the user's own by, with something after it."""
    return f"{method.source}{suffix}" if method.source else ""


def _untouched(name: str, folder: Path) -> Method:
    """The method with an empty space, under a name of its own."""
    try:
        method = find(name, folder)
    except UnknownMethod:
        if ":" in name or "[" in name:
            raise
        raise _unknown(f"{name}{UNTOUCHED}") from None
    return replace(
        method,
        name=f"{method.name}{UNTOUCHED}",
        description=f"{method.name} at its defaults, nothing searched",
        space={},
        wide_space={},
        paper=lambda _: {},
        fixed=frozenset(method.defaults),
        source=_suffixed(method, UNTOUCHED),
    )


def _with_settings(base: str, given: dict[str, Any], folder: Path) -> Method:
    """The method with stated settings, which no search changes, under a name of its own."""
    own = None if base in METHODS else _own_before_brackets(base, given, folder)
    method = own or find(base, folder)
    if not given:
        return method
    defaults = method.setting(given)
    text = in_brackets(given)

    def paper(stated: Paper) -> Setting:
        return {**method.paper_setting(stated), **given}

    def left(space: Space) -> Space:
        return {name: part for name, part in space.items() if name not in given}

    return replace(
        method,
        name=f"{method.name}{text}",
        description=f"{method.name} with {text.strip('[]')}",
        defaults=defaults,
        space=left(method.space),
        wide_space=None if method.wide_space is None else left(method.wide_space),
        paper=paper,
        fixed=method.fixed | given.keys(),
        source=_suffixed(method, text),
    )


def _own_before_brackets(base: str, given: dict[str, Any], folder: Path) -> Method | None:
    """A method of the user's own directly before brackets, which may need what is in them."""
    is_plain = not base.endswith((UNTOUCHED, "]")) and _split_mode(base)[1] is None
    return find_own(base, given, folder) if is_plain else None
