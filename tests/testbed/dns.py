"""The cluster's DNS: a CoreDNS on the machine, at the address the kubelets tell their pods."""

import urllib.error
import urllib.request
from pathlib import Path

from testbed import network
from testbed.api import Api
from testbed.rights import grant_user

USER = "system:coredns"
_READY_PORT = 8181


def write_corefile(path: Path, kubeconfig: Path) -> None:
    """Answer for the cluster's domain; every other name does not exist, and nobody outside is asked."""
    path.write_text(
        f"""\
.:53 {{
  bind {network.DNS_ADDRESS}
  errors
  ready {network.DNS_ADDRESS}:{_READY_PORT}
  kubernetes {network.CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 2
  }}
  template ANY ANY . {{
    rcode NXDOMAIN
  }}
}}
"""
    )


def grant(api: Api) -> None:
    """Let CoreDNS read what it answers from."""
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    grant_user(api, USER, rules)


def is_ready() -> bool:
    """Whether CoreDNS has read the cluster's Services and answers."""
    # No proxy of the environment may stand between us and our own bridge.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{network.DNS_ADDRESS}:{_READY_PORT}/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
