"""One wheel for the whole run, and environments made from it."""

import os
from pathlib import Path

import pytest

from tests.packaging.environments import Environment, built_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return built_wheel(shared / "wheel")


@pytest.fixture(scope="module")
def thin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What a machine that only runs a worker installs."""
    return Environment.made(tmp_path_factory.mktemp("thin") / "environment", wheel, "worker")
