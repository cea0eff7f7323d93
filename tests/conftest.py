"""What all tests share: the testbed's fixtures."""

pytest_plugins = [
    "testbed.pytest_plugin",
    "testbed.pytest_cluster",
    "testbed.aws_cli",
    "testbed.azurite",
    "testbed.etcd_v2",
    "testbed.kubeflow",
]
