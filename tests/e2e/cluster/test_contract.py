"""The kubernetes engine keeps the contract of all engines, on two real nodes."""

from __future__ import annotations

import pytest

from engine_contract import EngineContract

pytestmark = pytest.mark.timeout(600)


class TestKubernetesEngine(EngineContract):
    """The fixture `site` is in conftest.py."""
