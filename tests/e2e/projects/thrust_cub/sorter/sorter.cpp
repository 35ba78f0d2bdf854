#include <pybind11/pybind11.h>

extern "C" int sorter_twice(int value);
extern "C" int sorter_scale(float* data, int count, float factor);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("twice", &sorter_twice);
  m.def("scale", [](size_t data, int count, float factor) { return sorter_scale(reinterpret_cast<float*>(data), count, factor); });
}
