#ifndef TFRING_OPS_GPU_PACK_PACK_THREADS_H_
#define TFRING_OPS_GPU_PACK_PACK_THREADS_H_

// What one thread of one block of a pack kernel does, as plain functions: the device's compiler
// makes the kernels of them (pack_kernels.cu), the host's their twins for tests. So both give the
// same bits, which are those of the CPU's kernels (backend/reduction).

#include <cstdint>
#include <cstring>

#include "ops/gpu/pack/pack_batch.h"
#include "ops/runtime/backend/reduction/scaling.h"
#include "ops/runtime/base/half.h"

// Loops over what a thread keeps in registers are unrolled, rare ones are kept small.
#if defined(__CUDACC_RTC__)
#define TFRING_PACK_UNROLLED _Pragma("unroll")
#define TFRING_PACK_ROLLED _Pragma("unroll 1")
#else
#define TFRING_PACK_UNROLLED
#define TFRING_PACK_ROLLED
#endif

namespace tfring {
namespace {

// How a dtype is stored, and the type in which it is multiplied. Fast conversions may give any NaN
// for a NaN: the result is then made again with the other ones.
template <typename T>
struct PackPlain {
  static constexpr bool kScales = true;
  using Stored = T;
  using Value = T;
  static Value Load(Stored stored) { return stored; }
  static Stored Store(Value value) { return value; }
  static Value LoadFast(Stored stored) { return stored; }
  static Stored StoreFast(Value value) { return value; }
};

// Bytes of whatever they are part of: they are not multiplied.
struct PackByte : PackPlain<unsigned char> {
  static constexpr bool kScales = false;
};

struct PackBfloat16 {
  static constexpr bool kScales = true;
  using Stored = uint16_t;
  using Value = float;
  static Value Load(Stored stored) { return BfloatToFloat(stored); }
  static Stored Store(Value value) { return FloatToBfloat(value); }
  static Value LoadFast(Stored stored) { return BfloatToFloat(stored); }
  static Stored StoreFast(Value value) { return FloatToBfloat(value); }
};

struct PackFloat16 {
  static constexpr bool kScales = true;
  using Stored = uint16_t;
  using Value = float;
  static Value Load(Stored stored) { return HalfToFloat(stored); }
  static Stored Store(Value value) { return FloatToHalf(value); }
#if defined(__CUDACC_RTC__)
  static Value LoadFast(Stored stored) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored));
    return value;
  }
  static Stored StoreFast(Value value) {
    Stored stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(value));
    return stored;
  }
#else
  static Value LoadFast(Stored stored) { return HalfToFloat(stored); }
  static Stored StoreFast(Value value) { return FloatToHalf(value); }
#endif
};

// A device gives one NaN for all. The result of an x86 processor: the first NaN that goes in, made
// quiet; of operands that are none, the negative one without a payload.
inline float NanOfHost(float value, const PackBatch& batch) {
  const float source = value != value ? value : batch.narrow;
  return FloatFromBits(source != source ? FloatBits(source) | 0x00400000u : 0xffc00000u);
}

inline double NanOfHost(double value, const PackBatch& batch) {
  const double source = value != value ? value : batch.factor;
  uint64_t bits = 0;
  std::memcpy(&bits, &source, sizeof(bits));
  bits = source != source ? bits | 0x0008000000000000u : 0xfff8000000000000u;
  double result = 0.0;
  std::memcpy(&result, &bits, sizeof(bits));
  return result;
}

template <typename T>
T PackScaled(T value, const PackBatch& batch) {
  return Scaled(value, Scale{batch.factor, batch.divisor});
}

// If the factor is a float32, the product of doubles is exact: rounded, it is that of floats.
inline float PackScaled(float value, const PackBatch& batch) {
  if (batch.exact != 0) return value * batch.narrow;
  return Scaled(value, Scale{batch.factor, batch.divisor});
}

// One element, with the bits of the CPU.
template <typename T>
typename T::Stored PackElement(typename T::Stored stored, const PackBatch& batch) {
  if constexpr (!T::kScales) {
    return stored;
  } else {
    const typename T::Value value = T::Load(stored);
    const typename T::Value result = PackScaled(value, batch);
    if constexpr (static_cast<typename T::Value>(0.5) != 0) {  // a type that has NaNs
      if (result != result) return T::Store(NanOfHost(value, batch));
    }
    return T::Store(result);
  }
}

template <typename T, uint32_t kCount>
struct alignas(sizeof(T) * kCount) PackVector {
  T values[kCount];
};

// Scales a vector in place. False if there is a NaN in the result, which may then have other bits
// than the CPU's.
template <typename T, uint32_t kCount>
bool PackWhole(PackVector<typename T::Stored, kCount>* vector, const PackBatch& batch) {
  bool numbers = true;
  if constexpr (T::kScales) {
    TFRING_PACK_UNROLLED
    for (uint32_t i = 0; i < kCount; ++i) {
      const typename T::Value value = PackScaled(T::LoadFast(vector->values[i]), batch);
      numbers = numbers && value == value;
      vector->values[i] = T::StoreFast(value);
    }
  }
  return numbers;
}

// One thread's part of block `block` of the entry, in vectors of kCount elements that both
// addresses can be aligned to. The elements before the first vector and after the last one are for
// block 0. Loads come before stores, so that they overlap.
template <typename T, uint32_t kCount, uint32_t kUnrolled>
void PackVectors(const PackEntry& entry, uint32_t block, uint32_t thread, const PackBatch& batch) {
  using Stored = typename T::Stored;
  using Vector = PackVector<Stored, kCount>;
  constexpr uint32_t kPerBlock = kPackBlockBytes / sizeof(Vector);
  const Stored* src = static_cast<const Stored*>(entry.src);
  Stored* dst = static_cast<Stored*>(entry.dst);
  const uint32_t past =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(dst) % sizeof(Vector) / sizeof(Stored));
  int64_t head = past == 0 ? 0 : kCount - past;
  if (head > entry.elements) head = entry.elements;
  const int64_t vectors = (entry.elements - head) / kCount;
  const int64_t first = static_cast<int64_t>(block) * kPerBlock;
  const int64_t last = vectors - first < kPerBlock ? vectors : first + kPerBlock;
  const Vector* from = reinterpret_cast<const Vector*>(src + head);
  Vector* to = reinterpret_cast<Vector*>(dst + head);
  TFRING_PACK_ROLLED
  for (int64_t at = first + thread; at < last; at += kUnrolled * kPackThreads) {
    Vector loaded[kUnrolled] = {};
    TFRING_PACK_UNROLLED
    for (uint32_t k = 0; k < kUnrolled; ++k) {
      if (at + k * kPackThreads < last) loaded[k] = from[at + k * kPackThreads];
    }
    TFRING_PACK_UNROLLED
    for (uint32_t k = 0; k < kUnrolled; ++k) {
      const int64_t vector = at + k * kPackThreads;
      if (vector >= last) continue;
      if (PackWhole<T, kCount>(&loaded[k], batch)) {
        to[vector] = loaded[k];
        continue;
      }
      const int64_t element = head + vector * kCount;
      TFRING_PACK_ROLLED
      for (uint32_t i = 0; i < kCount; ++i) {
        dst[element + i] = PackElement<T>(src[element + i], batch);
      }
    }
  }
  if (block != 0) return;
  // At most 15 elements on each side.
  int64_t at = thread < head ? thread : entry.elements;
  if (thread >= 32) at = head + vectors * kCount + (thread - 32);
  if (at < entry.elements) dst[at] = PackElement<T>(src[at], batch);
}

// The same for addresses that are no multiples of their elements.
template <typename T>
void PackBytes(const PackEntry& entry, uint32_t block, uint32_t thread, const PackBatch& batch) {
  using Stored = typename T::Stored;
  constexpr uint32_t kPerBlock = kPackBlockBytes / sizeof(Stored);
  const int64_t first = static_cast<int64_t>(block) * kPerBlock;
  const int64_t end = first + kPerBlock;
  const int64_t last = end < entry.elements ? end : entry.elements;
  TFRING_PACK_ROLLED
  for (int64_t at = first + thread; at < last; at += kPackThreads) {
    const unsigned char* src = static_cast<const unsigned char*>(entry.src) + at * sizeof(Stored);
    unsigned char* dst = static_cast<unsigned char*>(entry.dst) + at * sizeof(Stored);
    unsigned char bytes[8];
    for (uint32_t b = 0; b < sizeof(Stored); ++b) bytes[b] = src[b];
    Stored stored;
    std::memcpy(&stored, bytes, sizeof(Stored));
    stored = PackElement<T>(stored, batch);
    std::memcpy(bytes, &stored, sizeof(Stored));
    for (uint32_t b = 0; b < sizeof(Stored); ++b) dst[b] = bytes[b];
  }
}

// Whether both addresses are the same number of whole elements past a multiple of a vector.
template <typename T, uint32_t kCount>
bool PackFits(const PackEntry& entry) {
  constexpr uint32_t kBytes = sizeof(typename T::Stored);
  const uintptr_t src = reinterpret_cast<uintptr_t>(entry.src);
  const uintptr_t dst = reinterpret_cast<uintptr_t>(entry.dst);
  return src % kBytes == 0 && src % (kBytes * kCount) == dst % (kBytes * kCount);
}

// A kernel: moves and scales elements.
template <typename T>
struct PackScale {
  static constexpr uint32_t kElementBytes = sizeof(typename T::Stored);

  static void Run(const PackEntry& entry, uint32_t block, uint32_t thread, const PackBatch& batch) {
    constexpr bool kInteger = static_cast<typename T::Value>(0.5) == 0;
    constexpr uint32_t kCount = kInteger ? 1 : 16 / kElementBytes;
    if (PackFits<T, kCount>(entry)) {
      PackVectors<T, kCount, kInteger ? 1 : 4>(entry, block, thread, batch);
    } else if (kCount != 1 && PackFits<T, 1>(entry)) {
      PackVectors<T, 1, 1>(entry, block, thread, batch);
    } else {
      PackBytes<T>(entry, block, thread, batch);
    }
  }
};

// A kernel: moves bytes, in the widest units that both addresses can be aligned to.
struct PackCopy {
  static constexpr uint32_t kElementBytes = 1;

  static void Run(const PackEntry& entry, uint32_t block, uint32_t thread, const PackBatch& batch) {
    if (PackFits<PackByte, 16>(entry)) {
      PackVectors<PackByte, 16, 4>(entry, block, thread, batch);
    } else if (PackFits<PackByte, 4>(entry)) {
      PackVectors<PackByte, 4, 4>(entry, block, thread, batch);
    } else {
      PackVectors<PackByte, 1, 4>(entry, block, thread, batch);
    }
  }
};

// The entry that a block works on: the last one that does not begin after it.
inline PackEntry PackEntryOf(const PackEntry* entries, uint32_t count, uint32_t block) {
  uint32_t low = 0;
  uint32_t high = count - 1;
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (entries[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return entries[low];
}

}  // namespace
}  // namespace tfring

#endif  // TFRING_OPS_GPU_PACK_PACK_THREADS_H_
