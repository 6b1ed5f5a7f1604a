#include "ops/runtime/backend/cpu/adasum.h"

#include "ops/runtime/backend/cpu/reduce_kernels_impl.h"

namespace tfring {
namespace {

constexpr int kLanes = 4;  // independent sums, which vectorise

template <typename E>
void Dots(const void* a, const void* b, int64_t count, AdasumDots* dots) {
  using Stored = typename E::Stored;
  const Stored* left = static_cast<const Stored*>(a);
  const Stored* right = static_cast<const Stored*>(b);
  double ab[kLanes] = {};
  double aa[kLanes] = {};
  double bb[kLanes] = {};
  auto add = [&](int lane, int64_t i) {
    const double x = static_cast<double>(E::Load(left[i]));
    const double y = static_cast<double>(E::Load(right[i]));
    ab[lane] += x * y;
    aa[lane] += x * x;
    bb[lane] += y * y;
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) add(lane, i + lane);
  }
  for (; i < count; ++i) add(0, i);
  for (int lane = 0; lane < kLanes; ++lane) {
    dots->ab += ab[lane];
    dots->aa += aa[lane];
    dots->bb += bb[lane];
  }
}

double FactorOf(double product, double norm) {
  return norm == 0.0 ? 1.0 : 1.0 - product / (2.0 * norm);
}

template <typename E>
void Combine(void* dst, const void* a, const void* b, int64_t count, const AdasumDots& dots,
             Scale scale) {
  using Stored = typename E::Stored;
  using Value = typename E::Value;
  Stored* to = static_cast<Stored*>(dst);
  const Stored* left = static_cast<const Stored*>(a);
  const Stored* right = static_cast<const Stored*>(b);
  const double of_left = FactorOf(dots.ab, dots.aa);
  const double of_right = FactorOf(dots.ab, dots.bb);
  const double factor = scale.factor;
  TFRING_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const double sum = of_left * static_cast<double>(E::Load(left[i])) +
                       of_right * static_cast<double>(E::Load(right[i]));
    to[i] = E::Store(static_cast<Value>(factor * sum));
  }
}

template <typename E>
constexpr AdasumKernels kAdasum{Dots<E>, Combine<E>};

}  // namespace

const AdasumKernels* FindAdasumKernels(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return &kAdasum<InFloat<Float16>>;
    case DataType::kBfloat16:
      return &kAdasum<InFloat<Bfloat16>>;
    case DataType::kFloat32:
      return &kAdasum<Plain<float>>;
    case DataType::kFloat64:
      return &kAdasum<Plain<double>>;
    default:
      return nullptr;
  }
}

void AddDoubles(void* dst, const void* a, const void* b, int64_t count) {
  using Stored = Unaligned<double>;
  Stored* to = static_cast<Stored*>(dst);
  const Stored* left = static_cast<const Stored*>(a);
  const Stored* right = static_cast<const Stored*>(b);
  for (int64_t i = 0; i < count; ++i) to[i].value = left[i].value + right[i].value;
}

}  // namespace tfring
