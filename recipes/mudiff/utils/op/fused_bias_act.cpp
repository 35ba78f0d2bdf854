// The Python module of fused_bias_act_kernel.cu and its checks.

#include <torch/extension.h>

torch::Tensor fused_forward(const torch::Tensor& x, const torch::Tensor& bias, double slope, double gain);
torch::Tensor fused_backward(const torch::Tensor& grad, const torch::Tensor& out, double slope, double gain);

#define CHECK_INPUT(x) TORCH_CHECK((x).is_cuda() && (x).is_contiguous(), #x " must be a contiguous CUDA tensor")

static torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& bias, double slope, double gain) {
  CHECK_INPUT(x);
  CHECK_INPUT(bias);
  TORCH_CHECK(x.dim() >= 2 && bias.numel() == x.size(1), "the bias needs one value per channel");
  return fused_forward(x, bias, slope, gain);
}

static torch::Tensor backward(const torch::Tensor& grad, const torch::Tensor& out, double slope, double gain) {
  CHECK_INPUT(grad);
  CHECK_INPUT(out);
  TORCH_CHECK(grad.sizes() == out.sizes(), "gradient and output differ in shape");
  return fused_backward(grad, out, slope, gain);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &forward, "gain * leaky_relu(x + bias)");
  m.def("backward", &backward, "gradient of x");
}
