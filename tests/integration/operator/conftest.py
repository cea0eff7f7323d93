"""One operator for the tests of a file, each in a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import operator_on_plane
from operator_desk import OURS, Desk
from operator_on_plane import Operator
from testbed.control_plane import ControlPlane
from testbed.fake_nodes import FakeNode


@pytest.fixture(scope="module")
def running(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Its process."""
    with operator_on_plane.operator(control_plane, tmp_path_factory.mktemp("operator")) as made:
        yield made


@pytest.fixture
def desk(control_plane: ControlPlane, namespace: str, running: Operator) -> Iterator[Desk]:
    """A namespace that the operator looks after."""
    made = Desk(control_plane, namespace, running.log)
    yield made
    made.forget()


@pytest.fixture
def two_nodes(control_plane: ControlPlane) -> Iterator[list[FakeNode]]:
    """Nodes without machines, with 8 GPUs each. What other tests left pending does not go there: use `OURS`."""
    nodes = [FakeNode(control_plane.admin, f"gang-{index}", {"nvidia.com/gpu": "8"}, OURS) for index in (0, 1)]
    yield nodes
    for node in nodes:
        node.delete()
