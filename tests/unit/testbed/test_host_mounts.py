import sys
from pathlib import Path

import testbed
from testbed.host_mounts import program, torch_mounts, usr_mounts


def test_torch_mounts_lend_usr_python_and_the_virtual_environment_read_only() -> None:
    lent = testbed.torch_mounts()

    paths = {mount["mountPath"] for mount in lent.mounts if mount.get("readOnly")}
    assert "/usr" in paths
    assert any(Path(sys.prefix).is_relative_to(path) for path in paths)
    assert any(Path(sys.base_prefix).resolve().is_relative_to(path) for path in paths)
    assert {mount["name"] for mount in lent.mounts} == {volume["name"] for volume in lent.volumes}
    assert program("torchrun").startswith(sys.prefix)


def test_a_folder_inside_a_lent_one_is_not_mounted_twice() -> None:
    lent = torch_mounts(Path("/usr/share"), Path("/srv/data"))

    paths = [mount["mountPath"] for mount in lent.mounts]
    assert "/usr/share" not in paths
    assert "/srv/data" in paths
    assert len(paths) == len(set(paths))
    assert [mount["mountPath"] for mount in usr_mounts().mounts] == ["/usr"]
