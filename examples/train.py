"""A plain DDP script, as one writes it without Orchestra. Two ways to run it:

    torchrun --nproc-per-node 2 train.py
    orchestra run "python train.py"

All it knows of Orchestra are three functions, and it works without them. `progress` feeds the progress bar and the hang
watch; `Stop` ends all processes after the same step when the job is suspended or its node drained; `result` says so.
"""

import os
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

try:
    from orchestra import train as orchestra
except ImportError:
    orchestra = None

EPOCHS, BATCH = 4, 64
CHECKPOINT = Path(os.environ.get("ORCHESTRA_OUTPUT_DIR", "out")) / "checkpoint.pt"


def main():
    dist.init_process_group()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    step = load(net, optimizer) if CHECKPOINT.exists() else 0
    stop = orchestra and orchestra.Stop()
    step, stopped = train(net, optimizer, device, step, stop)
    if orchestra:
        stop.close()
        orchestra.result("stopped" if stopped else "done", step, CHECKPOINT)
    dist.destroy_process_group()


def train(net, optimizer, device, step, stop):
    features = torch.randn(2048, 32, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(features, features[:, :4].sum(dim=1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
    model = DistributedDataParallel(net)
    for epoch in range(step // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in islice(loader, step % len(loader), None):
            loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if orchestra:
                orchestra.progress(step=step, total_steps=EPOCHS * len(loader), epoch=epoch + 1, loss=loss.item())
                if stop.agreed():
                    save(net, optimizer, step)
                    return step, True
        save(net, optimizer, step)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}/{EPOCHS} loss {loss.item():.4f}", flush=True)
    return step, False


def save(net, optimizer, step):
    if dist.get_rank() == 0:
        CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
        draft = CHECKPOINT.with_suffix(".tmp")
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft)
        draft.replace(CHECKPOINT)
    dist.barrier()


def load(net, optimizer):
    state = torch.load(CHECKPOINT, weights_only=True)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


if __name__ == "__main__":
    main()
