"""What several tests of the evaluation need."""

from __future__ import annotations

from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def keras(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Keras on torch. It reads both variables as it is imported, and writes into its home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "torch")
        patch.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))
        module: ModuleType = pytest.importorskip(
            "keras", reason="needs Keras: pip install -c constraints.txt 'keras>=3.4'"
        )
    return module
