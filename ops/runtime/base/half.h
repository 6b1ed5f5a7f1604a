#ifndef TFRING_OPS_RUNTIME_BASE_HALF_H_
#define TFRING_OPS_RUNTIME_BASE_HALF_H_

#include <cstdint>
#include <cstring>

namespace tfring {

// Conversions between 16-bit floats and float32: round to nearest even, subnormals kept, NaN stays
// a quiet NaN with the leading bits of its payload (as F16C does). All paths are computed and
// selected, so that a loop over them vectorises; none relies on float32 subnormals, so that they
// hold on threads that flush those to zero.

inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// `a` where the condition holds, else `b`, without a branch into which a compiler could move the
// floating-point work (that would stop vectorisation).
inline uint32_t SelectBits(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

inline float HalfToFloat(uint16_t half) {
  constexpr uint32_t kExponent = 0x7c00u << 13;
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  constexpr uint32_t kSmallest = 113u << 23;  // 2^-14, the smallest normal half
  const uint32_t shifted = (half & 0x7fffu) << 13;
  const uint32_t exponent = shifted & kExponent;
  const uint32_t normal = shifted + kRebias;
  const uint32_t special =
      (normal + ((128u - 16u) << 23)) | ((shifted & 0x007fffffu) ? 1u << 22 : 0);
  // The hidden bit that a subnormal lacks is added, then taken away in floating point.
  const uint32_t subnormal =
      FloatBits(FloatFromBits(normal + (1u << 23)) - FloatFromBits(kSmallest));
  uint32_t bits = SelectBits(exponent == kExponent, special, normal);
  bits = SelectBits(exponent == 0, subnormal, bits);
  return FloatFromBits(bits | (half & 0x8000u) << 16);
}

inline uint16_t FloatToHalf(float value) {
  constexpr uint32_t kInfinity = 255u << 23;
  constexpr uint32_t kOverflow = (127u + 16u) << 23;  // 2^16: everything from here on is infinity
  constexpr uint32_t kSmallest = 113u << 23;
  // Adding this float lines the ten bits of a subnormal half up at the bottom of the mantissa.
  constexpr uint32_t kAlign = ((127u - 15u) + (23u - 10u) + 1u) << 23;
  const uint32_t bits = FloatBits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
  const uint32_t subnormal = FloatBits(FloatFromBits(magnitude) + FloatFromBits(kAlign)) - kAlign;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
  const uint32_t special = SelectBits(magnitude > kInfinity, nan, 0x7c00u);
  uint32_t half = SelectBits(magnitude < kSmallest, subnormal, normal);
  half = SelectBits(magnitude >= kOverflow, special, half);
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
}

inline float BfloatToFloat(uint16_t bfloat) {
  return FloatFromBits(static_cast<uint32_t>(bfloat) << 16);
}

inline uint16_t FloatToBfloat(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// Storage types, for templates over element types. Arithmetic happens in float32.
struct Float16 {
  uint16_t bits = 0;
  static Float16 FromFloat(float value) { return {FloatToHalf(value)}; }
  float ToFloat() const { return HalfToFloat(bits); }
};

struct Bfloat16 {
  uint16_t bits = 0;
  static Bfloat16 FromFloat(float value) { return {FloatToBfloat(value)}; }
  float ToFloat() const { return BfloatToFloat(bits); }
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_HALF_H_
