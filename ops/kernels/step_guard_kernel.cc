// TfringStepGuard, which tfring/ops/step_guard.py puts into graphs that hold collectives.

#include "ops/kernels/registration.h"
#include "ops/kernels/step_runs.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// Runs when its graph starts, and returns at once. Constant after construction.
class StepGuardKernel : public tf::OpKernel {
 public:
  explicit StepGuardKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &process_set_));
  }

  void Compute(tf::OpKernelContext* context) override {
    StepRuns::Get().Guard(context, process_set_);
  }

  bool IsExpensive() override { return false; }

 private:
  ProcessSetId process_set_ = kGlobalProcessSet;
};

TFRING_REGISTER_KERNEL("TfringStepGuard", StepGuardKernel);

}  // namespace
}  // namespace tfring
