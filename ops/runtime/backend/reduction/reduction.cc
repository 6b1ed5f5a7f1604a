#include "ops/runtime/backend/reduction/reduction.h"

#include "ops/runtime/base/check.h"

namespace tfring {
namespace {

bool IsFloating(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

// The result of scaled inputs is the scaled result.
bool IsHomogeneous(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAverage || op == ReduceOp::kAdasum;
}

}  // namespace

Reduction ResolveReduction(const Collective& collective) {
  Reduction reduction;
  if (!Traits(collective.kind).reduces) return reduction;
  reduction.kernels = FindReduceKernels(collective.dtype);
  if (reduction.kernels != nullptr) reduction.combine = reduction.kernels->For(collective.op);
  if (collective.op == ReduceOp::kAdasum && collective.kind == CollectiveKind::kAllreduce) {
    const bool known = reduction.kernels != nullptr && reduction.kernels->adasum.dots != nullptr;
    if (known) reduction.adasum = &reduction.kernels->adasum;
  }
  TFRING_CHECK(reduction.combine != nullptr || reduction.adasum != nullptr)
      << CollectiveKindName(collective.kind) << " number " << collective.sequence << ": no "
      << ReduceOpName(collective.op) << " of " << DataTypeName(collective.dtype);
  reduction.before.factor = collective.prescale;
  reduction.after.factor = collective.postscale;
  const bool wide =
      collective.dtype == DataType::kFloat32 || collective.dtype == DataType::kFloat64;
  if (wide && IsHomogeneous(collective.op)) {
    reduction.after.factor *= reduction.before.factor;
    reduction.before.factor = 1.0;
  }
  if (collective.op == ReduceOp::kAverage) {
    const int64_t size = static_cast<int64_t>(collective.members.size());
    if (IsFloating(collective.dtype)) {
      reduction.after.factor /= static_cast<double>(size);
    } else {
      reduction.after.divisor = size;
    }
  }
  return reduction;
}

}  // namespace tfring
