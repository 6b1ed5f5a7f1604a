#ifndef TFRING_TESTS_CC_GPU_NCCL_HOSTILE_H_
#define TFRING_TESTS_CC_GPU_NCCL_HOSTILE_H_

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/gpu/nccl/gpu_world.h"
#include "tests/cc/test.h"

namespace tfring::testing {

// Both fakes as at the beginning, with streams that are late.
inline void BeginHostile(long seed, long delay_us) {
  Fake().Reset();
  ResetNccl();
  Fake().Set("seed", seed);
  Fake().Set("delay_us", delay_us);
}

// Waits for a collective's end on a rank. One that does not come ends the program, because nothing
// can be taken apart that still runs.
inline Completion EndOf(GpuWorld& world, Rank rank, uint64_t sequence, int seconds = 30) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!world.Has(rank, sequence, CompletionStage::kEnded)) {
    if (std::chrono::steady_clock::now() > limit) {
      std::cerr << "collective " << sequence << " of rank " << rank << " has not ended within "
                << seconds << " s\n";
      _exit(1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return world.Wait(rank, sequence);
}

inline Status LostRank() { return Unavailable("rank 1 is lost"); }

inline Job SmallSum(std::vector<int64_t> elements = {33}) {
  Job job;
  job.dtype = DataType::kInt32;
  job.elements = std::move(elements);
  return job;
}

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_GPU_NCCL_HOSTILE_H_
