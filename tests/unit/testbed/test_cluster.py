import os

import pytest

from testbed import packages
from testbed.cluster import CannotRunError, require_this_machine


def test_a_plain_user_is_told_that_two_real_nodes_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(CannotRunError, match="need root"):
        require_this_machine()


def test_a_machine_that_lacks_packages_and_apt_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(packages, "missing", lambda: ["containerd", "runc"])
    monkeypatch.setattr(packages, "can_install", lambda: False)

    with pytest.raises(CannotRunError, match="install these packages: containerd runc"):
        require_this_machine()
