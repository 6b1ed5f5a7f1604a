#ifndef TFRING_OPS_KERNELS_REGISTRATION_H_
#define TFRING_OPS_KERNELS_REGISTRATION_H_

#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {

using MakeKernel = tensorflow::OpKernel* (*)(tensorflow::OpKernelConstruction*);

// Keeps the arguments for TfringRegisterGpuKernels. Returns true.
bool AddGpuKernel(const char* op, MakeKernel make);

template <typename Kernel>
bool AddGpuKernel(const char* op) {
  return AddGpuKernel(op, [](tensorflow::OpKernelConstruction* construction) {
    return static_cast<tensorflow::OpKernel*>(new Kernel(construction));
  });
}

// Registers for CPUs at once, for GPUs when TfringRegisterGpuKernels is called.
#define TFRING_REGISTER_KERNEL(name, ...) \
  TFRING_REGISTER_KERNEL_NUMBERED(__COUNTER__, name, __VA_ARGS__)
#define TFRING_REGISTER_KERNEL_NUMBERED(number, name, ...) \
  TFRING_REGISTER_KERNEL_NAMED(number, name, __VA_ARGS__)
#define TFRING_REGISTER_KERNEL_NAMED(number, name, ...)                            \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU), __VA_ARGS__); \
  [[maybe_unused]] const bool kAddedGpuKernel##number = AddGpuKernel<__VA_ARGS__>(name)

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_REGISTRATION_H_
