"""The methods that are compared, one family per file, by the names people type."""

from __future__ import annotations

from difflib import get_close_matches

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


class UnknownMethod(ValueError):
    """There is no method of that name."""


def find(name: str) -> Method:
    """The method of that name.

    >>> find("adam").description
    'RMSprop with momentum and bias correction, as in Keras'
    >>> find("adm")
    Traceback (most recent call last):
    badm.bench.methods.UnknownMethod: there is no method 'adm'; did you mean adam or badm? \
`badm list methods` shows all
    """
    if name in METHODS:
        return METHODS[name]
    near = sorted(get_close_matches(name.lower(), METHODS, n=2))
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise UnknownMethod(f"there is no method {name!r}; {meant}`badm list methods` shows all")
