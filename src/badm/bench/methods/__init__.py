"""Find methods by name; each family is one file."""

from __future__ import annotations

from dataclasses import replace

from badm.bench.method import Method
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
from badm.bench.methods.replicas import MODE_SEPARATOR, MODES, replicated
from badm.bench.names import suggestion

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


class UnknownMethod(ValueError):
    """There is no method of that name."""


def find(name: str) -> Method:
    """Find a method by name; ``adam+outer`` is adam on several ranks with mode outer.

    ``adam-untouched`` is adam at its defaults: nothing is searched.

    >>> find("adam").description
    'RMSprop with momentum and bias correction, as in Keras'
    >>> find("adam+outer").description
    'adam on several ranks; a BADM step with the mean displacement of the ranks'
    >>> find("adam-untouched").description
    'adam at its defaults, nothing searched'
    >>> find("adm")
    Traceback (most recent call last):
    badm.bench.methods.UnknownMethod: there is no method 'adm'; did you mean adam or badm? \
`badm list methods` shows all
    """
    if name in METHODS:
        return METHODS[name]
    if name.endswith(UNTOUCHED):
        return _untouched(name.removesuffix(UNTOUCHED))
    inner, plus, mode = name.partition(MODE_SEPARATOR)
    if plus:
        if mode not in MODES:
            raise UnknownMethod(
                f"there is no replica mode {mode!r}; {suggestion(mode, MODES)}"
                f"There are {', '.join(MODES)}"
            )
        return replicated(find(inner), mode)
    raise _unknown(name)


def _unknown(name: str) -> UnknownMethod:
    ending = UNTOUCHED if name.endswith(UNTOUCHED) else ""
    names = [f"{one}{ending}" for one in METHODS]
    return UnknownMethod(
        f"there is no method {name!r}; {suggestion(name, names)}`badm list methods` shows all"
    )


def _untouched(name: str) -> Method:
    """The method with an empty space, under a name of its own."""
    try:
        method = find(name)
    except UnknownMethod:
        raise _unknown(f"{name}{UNTOUCHED}") from None
    return replace(
        method,
        name=f"{method.name}{UNTOUCHED}",
        description=f"{method.name} at its defaults, nothing searched",
        space={},
        wide_space={},
        paper=lambda _: {},
    )
