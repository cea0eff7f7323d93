"""Deployments without our operator: one job as StatefulSet, Job, PyTorchJob or TrainJob, and back. Pure."""

from orchestra.render.model import TARGETS, Options, Rendered, Target, Unexpressed
from orchestra.render.renderer import render

__all__ = ["TARGETS", "Options", "Rendered", "Target", "Unexpressed", "render"]
