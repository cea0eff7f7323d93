"""What a training script may use of Orchestra: each function on its own, none of them required.

    from orchestra import train

    world = train.init("out", seed=42)                 # device, process group, seed, output folder
    checkpoints = train.Checkpoints(world.output_dir / "checkpoints")
    resumed = checkpoints.load()                       # the newest complete one, or None
    stop = train.Stop()
    for step in ...:
        ...
        train.progress(step=step, total_steps=total, loss=loss.item())
        if stop.agreed():                              # true at the same step on all ranks
            train.result("stopped", step, checkpoints.save(step, {"model": model.state_dict()}))
            break

Needs torch and nothing else, imports torch only when a function needs it, and knows the agent only by the files of
docs/worker-contract.md. Without an agent (a script started by hand) everything works and nothing is reported.

The sources keep to Python 3.9, older than the rest of Orchestra: they are laid into users' own images.
"""

from orchestra.train.checkpoints import Checkpoints, Loaded, SaveFailed, SaveTimes
from orchestra.train.goodput import Goodput
from orchestra.train.manifest import last_complete
from orchestra.train.metrics import Metrics
from orchestra.train.order import Order
from orchestra.train.packing import Packs
from orchestra.train.reporting import collective, phase, progress
from orchestra.train.results import result
from orchestra.train.stopping import Stop
from orchestra.train.tokens import TokenFile
from orchestra.train.world import Refused, World, init

__all__ = [
    "init",
    "World",
    "Refused",
    "progress",
    "phase",
    "collective",
    "Stop",
    "result",
    "Checkpoints",
    "Loaded",
    "SaveFailed",
    "SaveTimes",
    "last_complete",
    "Order",
    "TokenFile",
    "Packs",
    "Metrics",
    "Goodput",
]
