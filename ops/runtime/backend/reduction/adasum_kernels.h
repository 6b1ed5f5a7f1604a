#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_ADASUM_KERNELS_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_ADASUM_KERNELS_H_

#include <cstdint>

namespace tfring {

// Adasum (Maleki et al., "Scaling Distributed Training with Adaptive Summation",
// https://arxiv.org/abs/2006.02924) adds two gradients so that what they have in common counts
// once:
//
//   Adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b
//
// Orthogonal gradients are added, equal ones averaged. A gradient of norm zero has factor 1. More
// than two gradients are combined along a binary tree over the positions, neighbours first. Each
// tensor of a collective is a separate gradient.

// a.b, |a|^2 and |b|^2. As bytes: three doubles, of any alignment.
struct AdasumDots {
  double ab = 0.0;
  double aa = 0.0;
  double bb = 0.0;
};

// The arithmetic of one dtype; addresses need no alignment, counts are elements. Products and sums
// are doubles, results are rounded once; the order of summation is fixed. Thread-safe.
struct AdasumKernels {
  // Adds the products of these elements to `dots`.
  void (*dots)(const void* a, const void* b, int64_t count, AdasumDots* dots) = nullptr;
  // dst = factor * Adasum(a, b); dst may be a or b but not overlap them otherwise.
  void (*combine)(void* dst, const void* a, const void* b, int64_t count, const AdasumDots& dots,
                  double factor) = nullptr;
};

// dst = a + b of `count` doubles, for partial sums. No alignment; dst may be a or b.
void AddDoubles(void* dst, const void* a, const void* b, int64_t count);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_ADASUM_KERNELS_H_
