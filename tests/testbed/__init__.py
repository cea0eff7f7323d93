"""A real Kubernetes for tests, benchmarks and people, on one small machine.

Tier 1 is a control plane (`testbed.control_plane`): etcd, kube-apiserver and, on request, the controller
manager and the scheduler. It needs neither root nor packages. Tier 2 puts two real nodes on top of it.
Nothing here is a fake.
"""

from testbed.host_mounts import torch_mounts

__all__ = ["torch_mounts"]
