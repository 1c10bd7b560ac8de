"""docs/clients.md says what the results say."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.helpers import ROOT


def test_the_page_is_what_its_maker_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    maker = import_module("make_clients")
    assert maker.PAGE.read_text(encoding="utf-8") == maker.page(), "python docs/make_clients.py"
