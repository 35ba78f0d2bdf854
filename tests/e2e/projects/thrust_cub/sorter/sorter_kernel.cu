#include <cub/device/device_reduce.cuh>
#include <thrust/device_ptr.h>
#include <thrust/transform.h>

struct Times {
  float factor;
  __host__ __device__ float operator()(float value) const { return factor * value; }
};

extern "C" int sorter_twice(int value) { return 2 * value; }

extern "C" int sorter_scale(float* data, int count, float factor) {
  thrust::device_ptr<float> first(data);
  thrust::transform(first, first + count, first, Times{factor});
  size_t bytes = 0;
  cub::DeviceReduce::Sum(nullptr, bytes, data, data, count);
  return static_cast<int>(cudaGetLastError());
}
