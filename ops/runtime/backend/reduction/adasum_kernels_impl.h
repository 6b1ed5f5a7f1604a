#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_ADASUM_KERNELS_IMPL_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_ADASUM_KERNELS_IMPL_H_

// The kernels of adasum_kernels.h as templates; a part of reduce_kernels_impl.h, which says why
// they are in an unnamed namespace and flattened, and what E is.

#include <cstdint>

#include "ops/runtime/backend/reduction/adasum_kernels.h"

namespace tfring {
namespace {

constexpr int kDotsLanes = 8;    // independent sums
constexpr int kDotsBlock = 256;  // elements that are converted together; a multiple of kDotsLanes

// A vector of the compiler's, which gives the same bits with every instruction set.
template <typename T>
using Lanes __attribute__((vector_size(sizeof(T) * kDotsLanes))) = T;

template <typename T>
inline void LoadLanes(const T* values, Lanes<double>* out) {
  Lanes<T> lanes;
  __builtin_memcpy(&lanes, values, sizeof(lanes));
  *out = __builtin_convertvector(lanes, Lanes<double>);
}

template <typename E>
__attribute__((flatten)) void DotsOfArrays(const void* a, const void* b, int64_t count,
                                           AdasumDots* dots) {
  using Stored = typename E::Stored;
  const Stored* left = static_cast<const Stored*>(a);
  const Stored* right = static_cast<const Stored*>(b);
  Lanes<double> ab = {};
  Lanes<double> aa = {};
  Lanes<double> bb = {};
  typename E::Value x[kDotsBlock];
  typename E::Value y[kDotsBlock];
  for (int64_t begin = 0; begin < count; begin += kDotsBlock) {
    const int size = count - begin < kDotsBlock ? static_cast<int>(count - begin) : kDotsBlock;
    for (int i = 0; i < size; ++i) x[i] = E::Load(left[begin + i]);
    for (int i = 0; i < size; ++i) y[i] = E::Load(right[begin + i]);
    // Zeros fill the last vector and change no sum.
    const int filled = (size + kDotsLanes - 1) / kDotsLanes * kDotsLanes;
    for (int i = size; i < filled; ++i) x[i] = y[i] = 0;
    for (int i = 0; i < filled; i += kDotsLanes) {
      Lanes<double> p;
      Lanes<double> q;
      LoadLanes(x + i, &p);
      LoadLanes(y + i, &q);
      ab += p * q;
      aa += p * p;
      bb += q * q;
    }
  }
  for (int lane = 0; lane < kDotsLanes; ++lane) {
    dots->ab += ab[lane];
    dots->aa += aa[lane];
    dots->bb += bb[lane];
  }
}

template <typename E>
__attribute__((flatten)) void AdasumOfArrays(void* dst, const void* a, const void* b, int64_t count,
                                             const AdasumDots& dots, double factor) {
  using Stored = typename E::Stored;
  Stored* to = static_cast<Stored*>(dst);
  const Stored* left = static_cast<const Stored*>(a);
  const Stored* right = static_cast<const Stored*>(b);
  const double of_left = dots.aa == 0.0 ? 1.0 : 1.0 - dots.ab / (2.0 * dots.aa);
  const double of_right = dots.bb == 0.0 ? 1.0 : 1.0 - dots.ab / (2.0 * dots.bb);
  _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {
    const double sum = of_left * static_cast<double>(E::Load(left[i])) +
                       of_right * static_cast<double>(E::Load(right[i]));
    to[i] = E::Store(static_cast<typename E::Value>(factor * sum));
  }
}

}  // namespace
}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_ADASUM_KERNELS_IMPL_H_
