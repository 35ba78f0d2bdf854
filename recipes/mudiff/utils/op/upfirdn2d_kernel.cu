// out[y, x] = sum over i, j of padded[y * down + i, x * down + j] * kernel[rows - 1 - i, columns - 1 - j], where `padded` is the input
// with zeros between its values (up) and around them.

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

namespace {

struct Shape {
  int height, width, rows, columns, out_height, out_width, up, down, x0, y0;
};

template <typename scalar_t>
__global__ void upfirdn2d_kernel(const scalar_t* input, const scalar_t* kernel, scalar_t* out, int64_t count, Shape s) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const int x = static_cast<int>(at % s.out_width);
  const int y = static_cast<int>(at / s.out_width % s.out_height);
  const scalar_t* plane = input + at / (static_cast<int64_t>(s.out_width) * s.out_height) * s.height * s.width;
  float sum = 0;
  for (int i = 0; i < s.rows; ++i) {
    const int spread_y = y * s.down + i - s.y0;
    if (spread_y < 0 || spread_y % s.up != 0 || spread_y / s.up >= s.height) continue;
    for (int j = 0; j < s.columns; ++j) {
      const int spread_x = x * s.down + j - s.x0;
      if (spread_x < 0 || spread_x % s.up != 0 || spread_x / s.up >= s.width) continue;
      sum += static_cast<float>(plane[spread_y / s.up * s.width + spread_x / s.up]) *
             static_cast<float>(kernel[(s.rows - 1 - i) * s.columns + s.columns - 1 - j]);
    }
  }
  out[at] = static_cast<scalar_t>(sum);
}

}  // namespace

at::Tensor upfirdn2d_cuda(const at::Tensor& x, const at::Tensor& kernel, int up, int down, int x0, int x1, int y0, int y1) {
  const c10::cuda::CUDAGuard guard(x.device());
  Shape s{};
  s.height = x.size(2), s.width = x.size(3), s.rows = kernel.size(0), s.columns = kernel.size(1);
  s.up = up, s.down = down, s.x0 = x0, s.y0 = y0;
  s.out_height = (s.height * up + y0 + y1 - s.rows) / down + 1;
  s.out_width = (s.width * up + x0 + x1 - s.columns) / down + 1;
  TORCH_CHECK(s.out_height >= 1 && s.out_width >= 1, "nothing is left of the input");
  at::Tensor out = at::empty({x.size(0), x.size(1), s.out_height, s.out_width}, x.options());
  const int64_t count = out.numel();
  if (count == 0) return out;
  const unsigned blocks = static_cast<unsigned>((count + 255) / 256);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "upfirdn2d", [&] {
    upfirdn2d_kernel<scalar_t><<<blocks, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), kernel.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), count, s);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
