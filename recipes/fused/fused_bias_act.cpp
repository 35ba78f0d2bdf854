// Bias + leaky ReLU + gain in one pass: the Python module, its checks, and the choice of device.
//
//   forward:  y = gain * leaky_relu(x + bias[channel], slope)      channel: dimension 1 of x
//   backward: gx = gain * gy * (y > 0 ? 1 : slope)                 bias gradient: gx summed over all other dimensions
//
// y has the sign of x + bias as long as slope and gain are positive, so backward needs y alone and x can be freed.
// backward is linear in gy: called on a gradient of gx it gives the gradient of gy.

// Not torch/extension.h: the whole C++ frontend in it takes 15 s of every compile.
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

at::Tensor forward_cpu(const at::Tensor& x, const at::Tensor& bias, double slope, double gain);
at::Tensor backward_cpu(const at::Tensor& grad, const at::Tensor& y, double slope, double gain);

// Defined in fused_bias_act_cuda.cpp. In a build of the C++ files alone they are null: hence weak.
__attribute__((weak)) at::Tensor forward_cuda(const at::Tensor& x, const at::Tensor& bias, double slope, double gain);
__attribute__((weak)) at::Tensor backward_cuda(const at::Tensor& grad, const at::Tensor& y, double slope, double gain);

namespace {

void check_settings(double slope, double gain) {
  TORCH_CHECK(slope > 0 && gain > 0, "fused: slope and gain must be positive, got ", slope, " and ", gain);
}

void check_pair(const at::Tensor& first, const at::Tensor& second) {
  TORCH_CHECK(first.device() == second.device(), "fused: tensors on different devices: ", first.device(), " and ", second.device());
  TORCH_CHECK(first.scalar_type() == second.scalar_type(), "fused: tensors of different types: ", first.scalar_type(), " and ",
              second.scalar_type());
}

bool on_gpu(const at::Tensor& x) {
  TORCH_CHECK(x.is_cpu() || x.is_cuda(), "fused: no implementation for ", x.device());
  TORCH_CHECK(x.is_cpu() || forward_cuda != nullptr, "fused: this build has no CUDA part, and the tensor is on ", x.device());
  return x.is_cuda();
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& bias, double slope, double gain) {
  check_settings(slope, gain);
  check_pair(x, bias);
  TORCH_CHECK(x.dim() >= 2, "fused: the input needs a batch and a channel dimension, got ", x.dim(), " dimension(s)");
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == x.size(1), "fused: the bias needs one value per channel, ", x.size(1), ", got ",
              bias.sizes());
  const bool gpu = on_gpu(x);
  return (gpu ? forward_cuda : forward_cpu)(x.contiguous(), bias.contiguous(), slope, gain);
}

at::Tensor backward(const at::Tensor& grad, const at::Tensor& y, double slope, double gain) {
  check_settings(slope, gain);
  check_pair(grad, y);
  TORCH_CHECK(grad.sizes() == y.sizes(), "fused: gradient of shape ", grad.sizes(), " for an output of shape ", y.sizes());
  const bool gpu = on_gpu(grad);
  return (gpu ? backward_cuda : backward_cpu)(grad.contiguous(), y.contiguous(), slope, gain);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "bias, leaky ReLU and gain in one pass";
  m.def("forward", &forward, "gain * leaky_relu(x + bias)", py::arg("x"), py::arg("bias"), py::arg("slope") = 0.2,
        py::arg("gain") = 1.0);
  m.def("backward", &backward, "gradient of x from the gradient and the value of the output", py::arg("grad"), py::arg("y"),
        py::arg("slope") = 0.2, py::arg("gain") = 1.0);
}
