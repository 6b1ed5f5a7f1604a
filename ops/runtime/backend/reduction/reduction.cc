#include "ops/runtime/backend/reduction/reduction.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/runtime/base/check.h"

namespace tfring {
namespace {

bool IsFloating(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

// Returns whether scaling the inputs gives the scaled result.
bool IsHomogeneous(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAverage || op == ReduceOp::kAdasum;
}

// So little is looked at at a time that it is still in the first-level cache when its bad values
// are counted.
constexpr int64_t kBlockBytes = 16 << 10;

// Rounds a user's factor to the type in which the dtype is multiplied, so that the result has the
// bits of `tensor * factor`: float32 for 16-bit floats, double for integers.
double InTypeOf(DataType dtype, double factor) {
  const bool narrow = IsFloating(dtype) && dtype != DataType::kFloat64;
  return narrow ? static_cast<double>(static_cast<float>(factor)) : factor;
}

// Returns how many halvings make a factor of at most `factor`.
int HalvingsUntil(double factor) {
  int halvings = 0;
  while (halvings < 30 && std::ldexp(1.0, -halvings) > factor) ++halvings;
  return halvings;
}

}  // namespace

int Reduction::Halvings(int members) const {
  return most_halvings == 0 ? 0 : std::min(most_halvings, HalvingsUntil(1.0 / members));
}

void Reduction::Combine(void* dst, const void* a, const void* b, int64_t count, Summed summed,
                        bool finish) const {
  Scale scale = finish ? after : Scale();
  if (most_halvings == 0) return combine(dst, a, b, count, scale);
  const int left = Halvings(summed.left);
  const int right = Halvings(summed.right);
  const int kept = finish ? 0 : Halvings(summed.left + summed.right);
  scale.factor = std::ldexp(scale.factor, std::min(left, right) - kept);
  if (left == right) return combine(dst, a, b, count, scale);
  if (left < right) std::swap(a, b);
  kernels->weighted_sum(dst, a, b, count, std::ldexp(1.0F, std::abs(left - right)), scale);
}

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
  const bool wide =
      collective.dtype == DataType::kFloat32 || collective.dtype == DataType::kFloat64;
  if (wide && IsHomogeneous(collective.op)) {
    // One product with one rounding: factors that cancel each other have no effect.
    reduction.after.factor = InTypeOf(collective.dtype, collective.prescale * collective.postscale);
  } else {
    reduction.before.factor = InTypeOf(collective.dtype, collective.prescale);
    reduction.after.factor = InTypeOf(collective.dtype, collective.postscale);
  }
  if (collective.op == ReduceOp::kAverage) {
    const int64_t size = static_cast<int64_t>(collective.members.size());
    if (IsFloating(collective.dtype)) {
      reduction.after.factor /= static_cast<double>(size);
    } else {
      reduction.after.divisor = size;
    }
  }
  const bool sum = collective.op == ReduceOp::kSum || collective.op == ReduceOp::kAverage;
  if (sum && collective.dtype == DataType::kFloat16) {
    reduction.most_halvings = HalvingsUntil(std::abs(reduction.after.factor));
  }
  return reduction;
}

std::vector<BadValues> FindBadValues(const Collective& collective) {
  const ReduceKernels* kernels = FindReduceKernels(collective.dtype);
  const bool adds = Traits(collective.kind).reduces && IsHomogeneous(collective.op);
  if (!adds || collective.members.size() == 1) return {};
  if (kernels == nullptr || kernels->values.all_finite == nullptr) return {};
  const int64_t element_bytes = DataTypeSize(collective.dtype);
  std::vector<BadValues> found;
  for (size_t i = 0; i < collective.buffers.size(); ++i) {
    const auto* data = static_cast<const char*>(collective.buffers[i].input);
    const int64_t bytes = collective.buffers[i].input_bytes;
    BadValues bad{i, collective.dtype, bytes / element_bytes, 0, 0};
    for (int64_t done = 0; done < bytes; done += kBlockBytes) {
      const int64_t elements = std::min(kBlockBytes, bytes - done) / element_bytes;
      if (kernels->values.all_finite(data + done, elements)) continue;
      kernels->values.count(data + done, elements, &bad.nans, &bad.infinities);
    }
    if (bad.nans + bad.infinities > 0) found.push_back(bad);
  }
  return found;
}

}  // namespace tfring
