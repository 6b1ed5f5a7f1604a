#ifndef TFRING_OPS_GPU_PACK_PACK_BATCH_H_
#define TFRING_OPS_GPU_PACK_PACK_BATCH_H_

// What one launch of a pack kernel gets. Read by the host's compiler and by the device's.

#include <cstdint>

namespace tfring {

// A row of contiguous elements that moves. The addresses are the device's, of any alignment.
struct PackEntry {
  const void* src;
  void* dst;
  int64_t elements;
  uint32_t first_block;  // the blocks [first_block, that of the next entry) work on this one
  uint32_t unused;
};

constexpr uint32_t kPackThreads = 256;       // of a block
constexpr uint32_t kPackBlockBytes = 16384;  // of a block
constexpr uint32_t kPackInlineEntries = 120;

// A kernel's parameters are at most 4,096 bytes: a batch of few entries travels in them, the
// entries of a larger one lie in device memory.
struct PackBatch {
  const PackEntry* table;  // null: `entries`
  double factor;           // as in Scale
  int64_t divisor;
  float narrow;    // the factor as a float32
  uint32_t exact;  // whether `narrow` is the factor
  uint32_t count;  // entries, at least 1
  PackEntry entries[kPackInlineEntries];
};
static_assert(sizeof(PackBatch) <= 4096, "a kernel takes no more");

// For each kernel: its name (the function is tfring_pack_NAME) and what it runs, of pack_threads.h.
#define TFRING_PACK_KERNELS(X)          \
  X(copy, PackCopy)                     \
  X(i8, PackScale<PackPlain<int8_t>>)   \
  X(u8, PackScale<PackPlain<uint8_t>>)  \
  X(i32, PackScale<PackPlain<int32_t>>) \
  X(i64, PackScale<PackPlain<int64_t>>) \
  X(f16, PackScale<PackFloat16>)        \
  X(bf16, PackScale<PackBfloat16>)      \
  X(f32, PackScale<PackPlain<float>>)   \
  X(f64, PackScale<PackPlain<double>>)

}  // namespace tfring

#endif  // TFRING_OPS_GPU_PACK_PACK_BATCH_H_
