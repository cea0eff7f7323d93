"""A pod as a part of a job, whoever made it: what its labels say."""

from __future__ import annotations

from orchestra.api.labels import ATTEMPT_LABEL, NODE_LABEL, ROLE_LABEL
from orchestra.kube.pods import Pod


class JobPod(Pod, frozen=True):
    """A worker, or the rendezvous store."""

    @property
    def attempt(self) -> int:
        """The attempt it belongs to."""
        return int(self.label(ATTEMPT_LABEL) or 0)

    @property
    def index(self) -> int:
        """Index of its node; -1 for the rendezvous store."""
        return int(self.label(NODE_LABEL) or -1)

    @property
    def is_worker(self) -> bool:
        """Whether it trains."""
        return self.label(ROLE_LABEL) == "worker"
