"""Pure planning: (queue, job) -> Plan. No I/O, no clock, no randomness."""

from orchestra.plan.model import Plan
from orchestra.plan.planner import plan
from orchestra.plan.where import Where

__all__ = ["Plan", "Where", "plan"]
