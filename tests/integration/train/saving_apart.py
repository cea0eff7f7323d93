"""Saves and loads a sharded state, under torchrun with any number of processes.

Its arguments: `save FOLDER` trains two steps under FSDP2 and saves the second (asynchronously, with an unsharded file
beside it), `nodes FOLDER` does the same with a folder for each rank, as on nodes that share none; `load FOLDER` loads it into a model made anew, over as many ranks as there are now, and trains a third step.
Each prints the sum of all parameters. A number after that is the rank whose disk is full.
"""

import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from orchestra import train
from orchestra.train import checkpoints as shared


def step(model: Any, optimizer: Any) -> None:
    """The same global batch on any number of ranks."""
    inputs = torch.linspace(-1, 1, 7 * 5).view(5, 7)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


def total(model: Any) -> float:
    """The sum of all parameters, whole."""
    return sum(float(parameter.full_tensor().double().sum()) for parameter in model.parameters())


def main() -> None:
    """Play one part."""
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "nodes":
        what, folder = "save", folder / os.environ["RANK"]
        shared._SEEN_LATE = 1.0
    world = train.init(folder, seed=1)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.GELU(), torch.nn.Linear(13, 3))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    checkpoints = train.Checkpoints(folder / "checkpoints", asynchronous=True)
    if what == "load":
        torch.manual_seed(99)
        into = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        loaded = checkpoints.load(into=into)
        assert loaded is not None
        set_state_dict(
            model, optimizer, model_state_dict=loaded.state["model"], optim_state_dict=loaded.state["optimizer"]
        )
        assert (loaded.step, loaded.state["note"]) == (2, "two")
    else:
        for _ in range(2):
            step(model, optimizer)
    step_done = total(model)
    if what == "save":
        if len(sys.argv) > 3 and world.rank == int(sys.argv[3]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
        state, moments = get_state_dict(model, optimizer)
        content = {"model": state, "optimizer": moments, "note": "two"}
        if len(sys.argv) > 3:
            checkpoints.save(2, content)
        checkpoints.save_async(2, content, exports=[folder / "current_ckpt.pt"])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # what is saved is what was there at the call
        checkpoints.wait()
    else:
        step(model, optimizer)
        step_done = total(model)
    if world.is_first:
        print(f"total={step_done:.9f}", flush=True)
    checkpoints.close()
    world.close()


if __name__ == "__main__":
    main()
