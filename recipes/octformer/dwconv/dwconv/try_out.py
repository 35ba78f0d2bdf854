"""Compare the convolution and its gradients with torch's own operations, on the GPU where there is one."""

import torch

from dwconv import octree_dwconv


def plain(data, weight, neigh):
    there = (neigh >= 0).unsqueeze(-1).to(data.dtype)
    return (data[neigh.clamp(min=0)] * there * weight).sum(1)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = torch.randn(50, 8, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.randn(27, 8, dtype=torch.float64, device=device, requires_grad=True)
    neigh = torch.randint(-1, 50, (50, 27), device=device)
    found = octree_dwconv(data, weight, neigh)
    wanted = plain(data, weight, neigh)
    assert torch.allclose(found, wanted), "forward"
    grad = torch.randn_like(found)
    for mine, its in zip(
        torch.autograd.grad(found, (data, weight), grad), torch.autograd.grad(wanted, (data, weight), grad)
    ):
        assert torch.allclose(mine, its), "gradient"
    print("dwconv agrees with torch on the " + device)
