#ifndef TFRING_TESTS_CC_BACKEND_WORLD_H_
#define TFRING_TESTS_CC_BACKEND_WORLD_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/runtime/backend/cpu_backend.h"
#include "tests/cc/backend/memory_net.h"

namespace tfring::testing {

// A CpuBackend for every rank of a test, over one MemoryNet. Use from one thread.
class World {
 public:
  World(int size, const Config& config, MemoryNet::Options options);
  // Aborts all, then destroys them.
  ~World();

  MemoryNet& net() { return net_; }
  CpuBackend& backend(Rank rank) { return *backends_[rank]; }
  int size() const { return static_cast<int>(backends_.size()); }

  // Waits for the completion with this sequence on this rank.
  Completion Wait(Rank rank, uint64_t sequence);

  // Completions of this sequence on this rank so far.
  int Count(Rank rank, uint64_t sequence);

 private:
  MemoryNet net_;
  std::mutex mutex_;  // guards completions_
  std::condition_variable changed_;
  std::map<std::pair<Rank, uint64_t>, std::vector<Completion>> completions_;
  std::vector<std::unique_ptr<CpuBackend>> backends_;
};

// Settings under which small data takes every way through the algorithms.
Config SmallConfig();

std::vector<Rank> FirstRanks(int size);

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_BACKEND_WORLD_H_
