"""Upsample by zeros, filter, downsample: forward and backward, with torch's own operations where there is no GPU."""

import torch
from torch.autograd import Function
from torch.nn.functional import conv2d, pad

from .build import load_flat

op = load_flat("upfirdn2d", ["upfirdn2d.cpp", "upfirdn2d_kernel.cu"])


class UpFirDn2d(Function):
    @staticmethod
    def forward(context, x, kernel, up, down, padding):
        context.save_for_backward(kernel)
        context.up, context.down, context.padding = up, down, padding
        context.size = x.shape[-2:]
        return op.upfirdn2d(x.contiguous(), kernel.contiguous(), up, down, *padding)

    @staticmethod
    def backward(context, grad):
        (kernel,) = context.saved_tensors
        up, down, (x0, _, y0, _) = context.up, context.down, context.padding
        (height, width), (rows, columns) = context.size, kernel.shape
        # The transposed operation: factors change places, the kernel turns round.
        back = (
            columns - x0 - 1,
            width * up - grad.shape[-1] * down + x0 - up + 1,
            rows - y0 - 1,
            height * up - grad.shape[-2] * down + y0 - up + 1,
        )
        return UpFirDn2d.apply(grad, torch.flip(kernel, [0, 1]), down, up, back), None, None, None, None


def upfirdn2d_native(x, kernel, up, down, padding):
    batch, channels, height, width = x.shape
    spread = x.new_zeros(batch, channels, height, up, width, up)
    spread[:, :, :, 0, :, 0] = x
    spread = pad(spread.reshape(batch * channels, 1, height * up, width * up), padding)
    out = conv2d(spread, torch.flip(kernel, [0, 1])[None, None])[:, :, ::down, ::down]
    return out.reshape(batch, channels, *out.shape[-2:])


def upfirdn2d(x, kernel, up=1, down=1, pad=(0, 0)):
    padding = (pad[0], pad[1], pad[0], pad[1]) if len(pad) == 2 else tuple(pad)
    return (UpFirDn2d.apply if x.is_cuda else upfirdn2d_native)(x, kernel, up, down, padding)
