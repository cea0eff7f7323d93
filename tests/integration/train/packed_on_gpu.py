"""On a GPU: packed loss and gradients, and the fused cross-entropy, against the documents one by one in fp32."""

import sys

import torch

from orchestra.train.gpt.fused import cross_entropy_sum, loss_and_gradients
from orchestra.train.gpt.model import Gpt, Shape


def gradient(parameter: torch.Tensor) -> torch.Tensor:
    """It must be there."""
    assert parameter.grad is not None
    return parameter.grad


def packed_difference(device: str) -> float:
    """The largest relative difference of any parameter's gradient."""
    torch.manual_seed(3)
    model = Gpt(Shape(64, 256, 2, 2, 64)).to(device)
    lengths = (100, 37, 90, 29)
    tokens = torch.randint(0, 64, (1, sum(lengths)), device=device)
    positions = torch.cat([torch.arange(length) for length in lengths])[None].to(device)
    documents = torch.cat([torch.full((length,), number) for number, length in enumerate(lengths)])[None].to(device)
    targets = tokens.roll(-1, dims=1)
    ends = torch.tensor(lengths).cumsum(0)
    targets[0, ends - 1] = -100
    packed = model(tokens, targets, positions, documents).loss
    packed.backward()
    gradients = [gradient(parameter).clone() for parameter in model.parameters()]
    model.zero_grad()
    single = torch.zeros((), device=device)
    for end, length in zip(ends.tolist(), lengths, strict=True):
        row = tokens[:, end - length : end]
        loss = model(row[:, :-1].contiguous(), row[:, 1:].contiguous()).loss
        loss.backward()
        single += loss.detach()
    differences = [
        float((one - gradient(parameter)).norm() / gradient(parameter).norm())
        for one, parameter in zip(gradients, model.parameters(), strict=True)
    ]
    return max(float((packed.detach() - single).abs() / single), *differences)


def fused_difference() -> tuple[float, float, float]:
    """Loss, and both gradients, of the fused cross-entropy against fp32."""
    torch.manual_seed(4)
    x = torch.randn(20000, 128, device="cuda", dtype=torch.bfloat16)
    weight = (torch.randn(5003, 128, device="cuda") * 0.1).bfloat16()
    targets = torch.randint(0, 5003, (20000,), device="cuda")
    targets[::7] = -100
    loss, dx, dw = loss_and_gradients(x, weight, targets)
    exact_x, exact_w = x.float().requires_grad_(), weight.float().requires_grad_()
    exact = cross_entropy_sum(exact_x, exact_w, targets)
    exact.backward()  # type: ignore[no-untyped-call]
    off_x = float((dx.float() - gradient(exact_x)).norm() / gradient(exact_x).norm())
    off_w = float((dw - gradient(exact_w)).norm() / gradient(exact_w).norm())
    return float((loss - exact.detach()).abs() / exact.detach()), off_x, off_w


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    packed = packed_difference(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    print(f"packed against one by one: {packed:.2e}")
    assert packed < 1e-4
    if torch.cuda.is_available():
        loss, off_x, off_w = fused_difference()
        print(f"fused cross-entropy: loss {loss:.2e}, gradients {off_x:.2e} and {off_w:.2e}")
        assert loss < 1e-3
        assert max(off_x, off_w) < 1e-2
