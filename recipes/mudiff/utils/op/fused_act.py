"""Bias, leaky ReLU and gain in one pass, forward, backward and backward of backward."""

import torch
from torch import nn
from torch.autograd import Function
from torch.nn.functional import leaky_relu

from .build import load_flat

fused = load_flat("fused", ["fused_bias_act.cpp", "fused_bias_act_kernel.cu"])


class Backward(Function):
    @staticmethod
    def forward(context, grad, out, slope, gain):
        context.save_for_backward(out)
        context.slope, context.gain = slope, gain
        return fused.backward(grad.contiguous(), out, slope, gain)

    @staticmethod
    def backward(context, grad):
        (out,) = context.saved_tensors
        return fused.backward(grad.contiguous(), out, context.slope, context.gain), None, None, None


class Forward(Function):
    @staticmethod
    def forward(context, x, bias, slope, gain):
        out = fused.forward(x.contiguous(), bias.contiguous(), slope, gain)
        context.save_for_backward(out)
        context.slope, context.gain = slope, gain
        return out

    @staticmethod
    def backward(context, grad):
        (out,) = context.saved_tensors
        grad_x = Backward.apply(grad, out, context.slope, context.gain)
        others = [dimension for dimension in range(grad_x.dim()) if dimension != 1]
        return grad_x, grad_x.sum(others), None, None


def fused_leaky_relu(x, bias, slope=0.2, gain=2**0.5):
    if x.is_cuda:
        return Forward.apply(x, bias, slope, gain)
    shape = [1, -1] + [1] * (x.dim() - 2)
    return gain * leaky_relu(x + bias.view(shape), slope)


class FusedLeakyReLU(nn.Module):
    def __init__(self, channels, slope=0.2, gain=2**0.5):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))
        self.slope, self.gain = slope, gain

    def forward(self, x):
        return fused_leaky_relu(x, self.bias, self.slope, self.gain)
