#include <ATen/Dispatch.h>

#include "dwconv.h"

at::Tensor dwconv_forward_cpu(const at::Tensor& data, const at::Tensor& weight, const at::Tensor& neigh) {
  const int64_t rows = neigh.size(0), count = neigh.size(1), channels = data.size(1);
  at::Tensor out = at::zeros({rows, channels}, data.options());
  const int64_t* near = neigh.data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(data.scalar_type(), "dwconv_forward", [&] {
    const scalar_t* from = data.data_ptr<scalar_t>();
    const scalar_t* factor = weight.data_ptr<scalar_t>();
    scalar_t* to = out.data_ptr<scalar_t>();
    for (int64_t n = 0; n < rows; ++n)
      for (int64_t k = 0; k < count; ++k)
        if (near[n * count + k] >= 0)
          for (int64_t c = 0; c < channels; ++c)
            to[n * channels + c] += factor[k * channels + c] * from[near[n * count + k] * channels + c];
  });
  return out;
}

at::Tensor dwconv_data_cpu(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& neigh, int64_t rows) {
  const int64_t nodes = neigh.size(0), count = neigh.size(1), channels = grad.size(1);
  at::Tensor out = at::zeros({rows, channels}, grad.options());
  const int64_t* near = neigh.data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "dwconv_data", [&] {
    const scalar_t* from = grad.data_ptr<scalar_t>();
    const scalar_t* factor = weight.data_ptr<scalar_t>();
    scalar_t* to = out.data_ptr<scalar_t>();
    for (int64_t n = 0; n < nodes; ++n)
      for (int64_t k = 0; k < count; ++k)
        if (near[n * count + k] >= 0)
          for (int64_t c = 0; c < channels; ++c)
            to[near[n * count + k] * channels + c] += factor[k * channels + c] * from[n * channels + c];
  });
  return out;
}

at::Tensor dwconv_weight_cpu(const at::Tensor& grad, const at::Tensor& data, const at::Tensor& neigh) {
  const int64_t nodes = neigh.size(0), count = neigh.size(1), channels = grad.size(1);
  at::Tensor out = at::zeros({count, channels}, grad.options());
  const int64_t* near = neigh.data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "dwconv_weight", [&] {
    const scalar_t* from = grad.data_ptr<scalar_t>();
    const scalar_t* value = data.data_ptr<scalar_t>();
    scalar_t* to = out.data_ptr<scalar_t>();
    for (int64_t n = 0; n < nodes; ++n)
      for (int64_t k = 0; k < count; ++k)
        if (near[n * count + k] >= 0)
          for (int64_t c = 0; c < channels; ++c)
            to[k * channels + c] += from[n * channels + c] * value[near[n * count + k] * channels + c];
  });
  return out;
}
