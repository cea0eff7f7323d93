from pathlib import Path

import pytest

from testbed.cgroups import CgroupError, Cgroups


def make_v1(mount: Path) -> None:
    for controller in ("cpu", "cpuset", "memory", "unified"):
        (mount / controller).mkdir()
    (mount / "cpuset" / "cpuset.cpus").write_text("0-1")
    (mount / "cpuset" / "cpuset.mems").write_text("0")


def make_v2(mount: Path) -> None:
    # The kernel makes these files in every new group; here they are there from the start.
    for folder in (mount, mount / "orchestra", mount / "orchestra" / "n0"):
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory pids rdma")
        (folder / "cgroup.subtree_control").write_text("")


def test_on_v1_a_node_gets_a_group_in_each_hierarchy_and_its_parents_cpus(tmp_path: Path) -> None:
    make_v1(tmp_path)
    cgroups = Cgroups(tmp_path)

    cgroups.make("n0")

    assert not cgroups.is_v2
    assert (tmp_path / "memory" / "orchestra" / "n0").is_dir()
    assert (tmp_path / "cpuset" / "orchestra" / "n0" / "cpuset.cpus").read_text() == "0-1"
    assert not (tmp_path / "unified" / "orchestra").exists()


def test_pods_get_their_share_of_a_busy_machine(tmp_path: Path) -> None:
    make_v1(tmp_path)
    shares = tmp_path / "cpu" / "orchestra" / "cpu.shares"  # the kernel makes it with the group
    shares.parent.mkdir()
    shares.write_text("1024")

    Cgroups(tmp_path).make("n0")

    assert int(shares.read_text()) > 10 * 1024


def test_on_v1_groups_that_runc_made_in_the_unified_hierarchy_are_removed_too(tmp_path: Path) -> None:
    make_v1(tmp_path)
    (tmp_path / "unified" / "orchestra" / "n0" / "kubepods").mkdir(parents=True)
    cgroups = Cgroups(tmp_path)
    assert cgroups.exist()

    cgroups.remove()

    assert not cgroups.exist()


def test_on_v2_controllers_are_handed_down_to_the_node(tmp_path: Path) -> None:
    make_v2(tmp_path)
    cgroups = Cgroups(tmp_path)

    cgroups.make("n0")

    assert cgroups.is_v2
    # Each controller is a write of its own, and a file (unlike the kernel's) keeps the last one.
    for folder in (tmp_path, tmp_path / "orchestra", tmp_path / "orchestra" / "n0"):
        assert (folder / "cgroup.subtree_control").read_text() == "+pids"


def test_a_v2_root_with_processes_of_its_own_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_v2(tmp_path)

    def busy(_path: Path, _text: str) -> int:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "write_text", busy)

    with pytest.raises(CgroupError, match="cannot hand controllers on"):
        Cgroups(tmp_path).make("n0")


def test_processes_are_found_in_all_groups_of_a_node(tmp_path: Path) -> None:
    make_v1(tmp_path)
    cgroups = Cgroups(tmp_path)
    cgroups.make("n0")
    cgroups.make("n1")
    (tmp_path / "memory" / "orchestra" / "n0" / "cgroup.procs").write_text("1\n")

    assert cgroups.pids("n0") == {1}
    assert cgroups.pids("n1") == set()
    assert cgroups.pids() == {1}
