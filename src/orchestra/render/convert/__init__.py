"""The way back: someone's existing manifests as a TorchrunQueue and a TorchrunJob."""

from orchestra.render.convert.converter import Converted, convert, convert_command, workloads_in

__all__ = ["Converted", "convert", "convert_command", "workloads_in"]
