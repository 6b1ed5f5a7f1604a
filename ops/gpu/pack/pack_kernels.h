#ifndef TFRING_OPS_GPU_PACK_PACK_KERNELS_H_
#define TFRING_OPS_GPU_PACK_PACK_KERNELS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/gpu/cuda/device.h"
#include "ops/gpu/cuda/pinned_memory.h"
#include "ops/gpu/pack/pack_batch.h"
#include "ops/gpu/pack/pack_images.h"
#include "ops/runtime/backend/reduction/scaling.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Contiguous elements in device memory. The addresses are equal or do not overlap. Any alignment
// works; multiples of 16 bytes are fastest.
struct PackItem {
  const void* src = nullptr;
  void* dst = nullptr;
  int64_t elements = 0;
};

// Moves and scales many tensors of one dtype on a device with one launch, plus one small copy if
// there are more than kPackInlineEntries. The results have the bits of the CPU's kernels. Without a
// binary for this device each tensor is one copy, and nothing can be scaled. For one thread at a
// time; nothing here waits for the device. Destroy it only when all launched work is done or the
// device is broken.
class PackKernels {
 public:
  // `images`: BuiltPackImages(), or a test's. Loads the binary into the device's context.
  PackKernels(std::shared_ptr<CudaDevice> device, std::shared_ptr<PinnedMemory> pinned,
              const std::vector<PackImage>& images);
  ~PackKernels();
  PackKernels(const PackKernels&) = delete;
  PackKernels& operator=(const PackKernels&) = delete;

  // Why there are no kernels; ok if there are.
  const Status& status() const { return status_; }

  // Enqueues dst = scale * src for all items on the stream. With kernels, scales every reducible
  // dtype; without them, only copies. Everything else is Unimplemented. After an error, part of it
  // may be on the stream.
  Status Launch(CuStream stream, const std::vector<PackItem>& items, DataType dtype,
                const Scale& scale);

 private:
  // The entries of a batch on their way to the device.
  struct Table {
    std::shared_ptr<CudaEvent> used;  // null: not recorded, because of an error
    std::shared_ptr<void> pinned;
    std::shared_ptr<void> memory;
  };

  Status Load(const std::vector<PackImage>& images);
  Status CopyEach(CuStream stream, const std::vector<PackItem>& items, int64_t element_bytes);
  Status LaunchKernel(CuStream stream, CuFunction function, const std::vector<PackEntry>& entries,
                      uint32_t blocks, PackBatch* batch);
  Result<Table> SendTable(CuStream stream, const std::vector<PackEntry>& entries);
  void DropUsedTables();

  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<PinnedMemory> pinned_;
  CuModule module_ = nullptr;
  std::map<std::string, CuFunction> functions_;  // by name
  std::deque<Table> tables_;  // tables that the device may still read, oldest first
  Status status_;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_PACK_PACK_KERNELS_H_
