// What the fake driver runs when a pack kernel of tfring is launched: the same functions, compiled
// for the host, thread after thread. Part of the fake libcuda.so.1, so that nothing has to be set
// up where that is loaded.

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "ops/gpu/pack/pack_batch.h"
#include "ops/gpu/pack/pack_threads.h"
#include "tests/fakes/cuda/fake_cuda.h"

namespace tfring {
namespace {

template <typename T>
T* View(T* address, int64_t bytes) {
  return static_cast<T*>(
      FakeCudaView(reinterpret_cast<uintptr_t>(address), static_cast<size_t>(bytes)));
}

template <typename Kernel>
void Run(void** parameters, unsigned grid, unsigned threads) {
  PackBatch batch = *static_cast<const PackBatch*>(parameters[0]);
  if (threads != kPackThreads || batch.count == 0) {
    std::fprintf(stderr, "a pack kernel was launched with %u threads and %u entries\n", threads,
                 batch.count);
    std::abort();
  }
  const PackEntry* entries = batch.entries;
  if (batch.table != nullptr) {
    entries = View(const_cast<PackEntry*>(batch.table), batch.count * sizeof(PackEntry));
  }
  for (uint32_t block = 0; block < grid; ++block) {
    PackEntry entry = PackEntryOf(entries, batch.count, block);
    entry.src = View(const_cast<void*>(entry.src), entry.elements * Kernel::kElementBytes);
    entry.dst = View(entry.dst, entry.elements * Kernel::kElementBytes);
    for (uint32_t thread = 0; thread < threads; ++thread) {
      Kernel::Run(entry, block - entry.first_block, thread, batch);
    }
  }
}

void Register(const char* name, void (*twin)(void**, unsigned, unsigned)) {
  const size_t bytes = sizeof(PackBatch);
  FakeCudaRegisterKernel(name, twin);
  FakeCudaKernelParameters(name, &bytes, 1);
}

__attribute__((constructor)) void RegisterAll() {
#define TFRING_REGISTER_PACK_TWIN(name, ...) Register("tfring_pack_" #name, Run<__VA_ARGS__>);
  TFRING_PACK_KERNELS(TFRING_REGISTER_PACK_TWIN)
#undef TFRING_REGISTER_PACK_TWIN
}

}  // namespace
}  // namespace tfring
