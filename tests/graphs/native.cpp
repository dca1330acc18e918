// Operators whose C++ code a trace runs. NUMBER is found in the built library, and replaced there.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

static const volatile char NUMBER[] = "cachesvc-test-number-1";

static double number() { return NUMBER[21] - '0'; }
static at::Tensor traced(const at::Tensor& x) { return at::mul(x, number()); }
static at::Tensor shape(const at::Tensor& x) { return at::add(x, 0.0); }

TORCH_LIBRARY(cachesvc_test, m) {
  m.def("composite(Tensor x) -> Tensor", &traced);
  m.def("graded(Tensor x) -> Tensor");
  m.def("plain(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(cachesvc_test, CPU, m) {
  m.impl("graded", &shape);
  m.impl("plain", &traced);
}
TORCH_LIBRARY_IMPL(cachesvc_test, Autograd, m) { m.impl("graded", &traced); }
#ifdef OVER
TORCH_LIBRARY_IMPL(aten, AutogradCPU, m) { m.impl("hardswish", &traced); }
#endif
