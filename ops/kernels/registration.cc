#include "ops/kernels/registration.h"

#include <mutex>
#include <string>
#include <vector>

#include "ops/runtime/base/export.h"
#include "tensorflow/core/common_runtime/input_colocation_exemption_registry.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

struct GpuKernel {
  const char* op;
  MakeKernel make;
};

// Filled while the library is loaded, constant afterwards. Never destroyed.
std::vector<GpuKernel>& GpuKernels() {
  static auto* const kernels = new std::vector<GpuKernel>();
  return *kernels;
}

// Returns whether the argument is a tensor of the collective: these have type T. The CPU reads or
// writes all other arguments, which are small: the channel, splits, ranks.
bool IsTensor(const tf::OpDef::ArgDef& argument) { return argument.type_attr() == "T"; }

// If `types` is not empty, T is one of them.
void Register(const GpuKernel& kernel, const tf::OpDef& op, bool tensors_on_cpu,
              const std::vector<tf::DataType>& types) {
  tf::KernelDefBuilder builder(kernel.op);
  builder.Device(tf::DEVICE_GPU);
  if (!types.empty()) builder.TypeConstraint("T", types);
  for (const auto* arguments : {&op.input_arg(), &op.output_arg()}) {
    for (const tf::OpDef::ArgDef& argument : *arguments) {
      if (tensors_on_cpu || !IsTensor(argument)) builder.HostMemory(argument.name().c_str());
    }
  }
  tf::kernel_factory::OpKernelRegistrar(builder.Build(), kernel.op, kernel.make);
}

// Returns the types of attribute T in device memory; none if the op has no such attribute.
std::vector<tf::DataType> TypesOnDevice(const tf::OpDef& op) {
  std::vector<tf::DataType> types;
  for (const tf::OpDef::AttrDef& attribute : op.attr()) {
    if (attribute.name() != "T") continue;
    for (const int type : attribute.allowed_values().list().type()) {
      if (type != tf::DT_INT32) types.push_back(static_cast<tf::DataType>(type));
    }
  }
  return types;
}

void RegisterAll() {
  for (const GpuKernel& kernel : GpuKernels()) {
    const tf::OpDef* op = nullptr;
    TF_CHECK_OK(tf::OpRegistry::Global()->LookUpOpDef(kernel.op, &op));
    const std::vector<tf::DataType> types = TypesOnDevice(*op);
    // Without this TensorFlow would run the op on the device of its channel.
    if (op->input_arg_size() > 0) {
      tf::InputColocationExemptionRegistry::Global()->Register(kernel.op);
    }
    if (types.empty()) {
      Register(kernel, *op, true, {});
      continue;
    }
    Register(kernel, *op, false, types);
    // TensorFlow keeps int32 tensors on the CPU, because most are shapes and indices.
    Register(kernel, *op, true, {tf::DT_INT32});
  }
}

}  // namespace

bool AddGpuKernel(const char* op, MakeKernel make) {
  GpuKernels().push_back({op, make});
  return true;
}

}  // namespace tfring

// Lets TensorFlow place the ops on GPUs. Python calls it through ctypes, and only if there is a
// GPU: without one nothing about the placement of ops may change. May be called repeatedly, from
// any thread.
extern "C" TFRING_EXPORT void TfringRegisterGpuKernels() {
  static std::once_flag once;
  std::call_once(once, tfring::RegisterAll);
}
