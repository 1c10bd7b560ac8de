"""Code that does something else has another version, so that no old run is taken for a new one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from badm.bench import methods
from tests.helpers import fingerprints
from tests.helpers.fingerprints import REPLICAS, Known, known, names, near, now, unversioned

AGAIN = "`python -m tests.helpers.fingerprints` writes it down anew"
WHERE = {
    "engine": "ENGINE in src/badm/bench/records/runs.py",
    **{name: f"version of the mode {name} in replicas.py" for name in REPLICAS},
}


def where(name: str) -> str:
    """What is to be raised, in words."""
    return WHERE.get(name, f"`version` of {name} in src/badm/bench/methods")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.distributed) if n in REPLICAS else n for n in names()],
)
def test_what_changed_has_another_version(name: str) -> None:
    before = known()[name]
    current = now(name, before.setting)
    assert not unversioned(current, before), (
        f"{name} does not do what it did: raise the {where(name)}, so that old runs are not "
        f"reused; then {AGAIN}"
    )
    assert current.version == before.version, f"{name} is new: {AGAIN}"
    if current.package != before.package:
        pytest.skip(f"the table is of {before.package}, here is {current.package}")
    assert (current.setting, current.space) == (before.setting, before.space), (
        f"the defaults or ranges of {name} have changed, which makes other runs: if that is "
        f"meant, {AGAIN}"
    )


def test_every_method_is_in_the_table() -> None:
    assert list(known()) == names()


@pytest.mark.parametrize("name", ["badm", "badm-kronecker", "adam", "soap", "sisa", "dladmm"])
def test_a_thousandth_of_a_setting_is_noticed(name: str) -> None:
    """So the numbers are fine enough to tell one code from another."""
    method, before = methods.find(name), known()[name]
    option = "lr" if "lr" in before.setting else next(iter(before.setting))
    other = {**before.setting, option: 1.001 * before.setting[option]}
    assert not near(fingerprints.fingerprint(method, other), before.values)


def test_the_same_numbers_but_for_rounding_are_near_and_others_are_not() -> None:
    one = Known("1", "", [1.0, 2.0, 1e5])
    assert not unversioned(replace(one, values=[1.0, 2.0, 1e5 + 1e-7]), one)
    assert unversioned(replace(one, values=[1.0, 2.0, 1e5 + 1e-2]), one)
    assert unversioned(replace(one, values=[1.0, 2.0]), one)
    assert not unversioned(Known("2", "", [3.0]), one)
    assert not unversioned(Known("1", "torch 99", [3.0]), one)
