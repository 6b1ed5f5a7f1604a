// The pack kernels. tools/compile_pack_kernels.py compiles them with NVRTC (docs/adr/0025), with
// the option that makes the plain functions of pack_threads.h functions of the device.

#include "ops/gpu/pack/pack_threads.h"

namespace tfring {

// One thread. The entries of a small batch stay in the memory of the parameters, where all threads
// of a block read the same one.
template <typename Kernel>
void Run(const PackBatch& batch) {
  const PackEntry entry = batch.table != nullptr
                              ? PackEntryOf(batch.table, batch.count, blockIdx.x)
                              : PackEntryOf(batch.entries, batch.count, blockIdx.x);
  Kernel::Run(entry, blockIdx.x - entry.first_block, threadIdx.x, batch);
}

#define TFRING_DEFINE_PACK_KERNEL(name, ...)                        \
  extern "C" __global__ void __launch_bounds__(kPackThreads)        \
      tfring_pack_##name(const __grid_constant__ PackBatch batch) { \
    Run<__VA_ARGS__>(batch);                                        \
  }
TFRING_PACK_KERNELS(TFRING_DEFINE_PACK_KERNEL)

}  // namespace tfring
