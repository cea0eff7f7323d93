"""The words of Orchestra: TorchrunQueue and TorchrunJob, how they are read, checked and published as CRDs."""

from orchestra.api.job import TorchrunJob
from orchestra.api.problem import Invalid, Problem
from orchestra.api.queue import TorchrunQueue

GROUP = "torchrun.ai"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

__all__ = ["API_VERSION", "GROUP", "VERSION", "Invalid", "Problem", "TorchrunJob", "TorchrunQueue"]
