"""Only `make clients` has the packages that these tests are about."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("transformers") and find_spec("peft") else ["*.py"]
