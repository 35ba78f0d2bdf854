// The CPU side of fused_bias_act.cpp; both tensors are contiguous and checked there.

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <cstdint>

at::Tensor forward_cpu(const at::Tensor& x, const at::Tensor& bias, double slope, double gain) {
  at::Tensor y = at::empty_like(x);
  const int64_t channels = bias.numel();
  const int64_t planes = x.size(0) * channels;
  const int64_t plane = planes > 0 ? x.numel() / planes : 0;  // values that share a bias, one after the other
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "fused_forward_cpu", [&] {
    const scalar_t* from = x.data_ptr<scalar_t>();
    const scalar_t* shift = bias.data_ptr<scalar_t>();
    scalar_t* to = y.data_ptr<scalar_t>();
    const scalar_t up = static_cast<scalar_t>(gain), down = static_cast<scalar_t>(gain * slope);
    for (int64_t p = 0; p < planes; ++p) {
      const scalar_t b = shift[p % channels];
      for (int64_t i = p * plane; i < (p + 1) * plane; ++i) {
        const scalar_t value = from[i] + b;
        to[i] = value * (value > 0 ? up : down);
      }
    }
  });
  return y;
}

at::Tensor backward_cpu(const at::Tensor& grad, const at::Tensor& y, double slope, double gain) {
  at::Tensor gx = at::empty_like(grad);
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "fused_backward_cpu", [&] {
    const scalar_t* from = grad.data_ptr<scalar_t>();
    const scalar_t* value = y.data_ptr<scalar_t>();
    scalar_t* to = gx.data_ptr<scalar_t>();
    const scalar_t up = static_cast<scalar_t>(gain), down = static_cast<scalar_t>(gain * slope);
    for (int64_t i = 0; i < grad.numel(); ++i) to[i] = from[i] * (value[i] > 0 ? up : down);
  });
  return gx;
}
