import torch
from torch import nn
from torch.autograd import Function

from dwconv import core


class Convolve(Function):
    @staticmethod
    def forward(context, data, weight, neigh):
        context.save_for_backward(data, weight, neigh)
        return core.forward(data.contiguous(), weight.contiguous(), neigh.contiguous())

    @staticmethod
    def backward(context, grad):
        data, weight, neigh = context.saved_tensors
        grad = grad.contiguous()
        grad_data = core.backward_data(grad, weight.contiguous(), neigh.contiguous(), data.shape[0])
        grad_weight = core.backward_weight(grad, data.contiguous(), neigh.contiguous())
        return grad_data, grad_weight, None


def octree_dwconv(data, weight, neigh):
    return Convolve.apply(data, weight, neigh)


class OctreeDWConv(nn.Module):
    def __init__(self, channels, neighbours=27):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(neighbours, channels) / neighbours**0.5)

    def forward(self, data, neigh):
        return octree_dwconv(data, self.weight, neigh)
