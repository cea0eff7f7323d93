import pytest

from testbed import packages
from testbed.steps import silent


def test_what_is_missing_is_said_in_one_line_where_it_cannot_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = (packages.Requirement("no-such-program", ("some-package", "another")),)
    monkeypatch.setattr(packages, "REQUIREMENTS", needs)
    monkeypatch.setattr(packages, "can_install", lambda: False)

    with pytest.raises(packages.PackagesError) as error:
        packages.ensure(silent)

    assert str(error.value) == "install these packages as root: apt-get install some-package another"


def test_nothing_is_installed_where_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "REQUIREMENTS", (packages.Requirement("sh", ("dash",)),))
    monkeypatch.setattr(packages, "can_install", lambda: pytest.fail("asked in vain"))

    packages.ensure(silent)
