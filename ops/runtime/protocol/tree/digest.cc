#include "ops/runtime/protocol/tree/digest.h"

#include <algorithm>
#include <cstring>

namespace tfring {
namespace {

constexpr uint64_t kOddA = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kOddB = 0xC2B2AE3D27D4EB4Full;

// Every bit of the result depends on every bit of the value.
uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

}  // namespace

// Two sums that are mixed after each word, in different ways, and with each other at the end.
Digest DigestOf(std::string_view bytes) {
  uint64_t a = kOddA ^ bytes.size();
  uint64_t b = kOddB + bytes.size();
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    a = Mix(a + word * kOddA) + kOddB;
    b = Mix((b ^ word) * kOddB) + kOddA;
  }
  return {Mix(a + b), Mix(a ^ (b * kOddA))};
}

}  // namespace tfring
