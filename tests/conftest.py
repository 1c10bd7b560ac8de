"""What every test shares: one thread, and property tests that draw the same cases everywhere."""

import os
import signal
import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import settings

from tests.helpers import ROOT

torch.set_num_threads(1)

# Programs that tests start find what tests share, too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

# A shell starts what runs in the background with Ctrl-C ignored, and children would inherit that.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A case that fails in one place fails in every place, and no case fails for a slow machine.
settings.register_profile("badm", deadline=None, derandomize=True)
settings.load_profile("badm")


LONG = ("slow", "distributed", "browser", "data")  # markers of what `make quick` leaves out
SAMPLED = 2  # cases that it runs of a test, but for those marked `every_case`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"run no tests marked {', '.join(LONG)}, and {SAMPLED} cases of every other test",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("quick"):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(map(item.get_closest_marker, LONG)):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for test in cases.values() for item in sampled(test)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def sampled(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Keep cases evenly apart, the first and the last among them."""
    if len(cases) <= SAMPLED or cases[0].get_closest_marker("every_case"):
        return cases
    return [cases[round(i * (len(cases) - 1) / (SAMPLED - 1))] for i in range(SAMPLED)]


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are not for names: compressed ones hold the time, and workers must agree on names."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session")
def badm_data() -> Path:
    """The folder of real datasets, where there is one."""
    named = os.environ.get("BADM_DATA")
    if not named:
        pytest.skip("needs real data: set BADM_DATA to a folder that has it")
    folder = Path(named)
    # Named but not there is a mistake, and skipping would hide it.
    assert folder.is_dir(), f"BADM_DATA must be a folder, got {named}"
    return folder


@pytest.fixture(scope="module")
def keras(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Keras, on torch unless a test asks for another backend.

    It reads both variables as it is imported, and writes into its home.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", os.environ.get("BADM_KERAS_BACKEND", "torch"))
        patch.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))
        module: ModuleType = pytest.importorskip(
            "keras", reason="needs Keras: pip install -c constraints.txt 'keras>=3.4'"
        )
    return module
