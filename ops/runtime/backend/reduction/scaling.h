#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_SCALING_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_SCALING_H_

// How one value is multiplied with a factor: for the processor, and for devices, whose compiler
// reads this file, too (ops/gpu/pack); it includes nothing else. Everything that is compiled is in
// an unnamed namespace: reduce_kernels_impl.h says why.

#include <cstdint>

namespace tfring {

// What a value is multiplied with. Floats: value * factor (divisor is 1). Integers: value * factor
// / divisor, rounded toward zero once, at the end, and kept in range; so an integer Average of N
// equal values is that value.
struct Scale {
  double factor = 1.0;
  int64_t divisor = 1;
  bool identity() const { return factor == 1.0 && divisor == 1; }
};

namespace {

inline float Scaled(float value, Scale scale) {
  return static_cast<float>(static_cast<double>(value) * scale.factor);
}

inline double Scaled(double value, Scale scale) { return value * scale.factor; }

// Exact as long as a double holds the value and no factor is given, since rounding a quotient
// correctly cannot carry it over an integer.
template <typename T>
T Scaled(T value, Scale scale) {
  if (sizeof(T) == 8 && scale.factor == 1.0) {
    return static_cast<T>(value / static_cast<T>(scale.divisor));
  }
  // The bounds are powers of two (or one less), so that the casts back are in range.
  constexpr bool kSigned = static_cast<T>(-1) < T{0};
  constexpr int kBits = static_cast<int>(8 * sizeof(T)) - (kSigned ? 1 : 0);
  constexpr double kAbove = static_cast<double>(uint64_t{1} << (kBits - 1)) * 2.0;
  constexpr T kHighest = static_cast<T>((((uint64_t{1} << (kBits - 1)) - 1) << 1) | 1);
  constexpr double kLowest = kSigned ? -kAbove : 0.0;
  const double exact =
      static_cast<double>(value) * scale.factor / static_cast<double>(scale.divisor);
  if (exact >= kAbove) return kHighest;
  if (exact > kLowest) return static_cast<T>(exact);
  return exact <= kLowest ? static_cast<T>(kLowest) : T{0};  // NaN becomes 0
}

}  // namespace
}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_SCALING_H_
