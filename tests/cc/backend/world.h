#ifndef TFRING_TESTS_CC_BACKEND_WORLD_H_
#define TFRING_TESTS_CC_BACKEND_WORLD_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/backend/cpu_backend.h"
#include "tests/cc/transport/in_process.h"
#include "tests/cc/transport/shared_host.h"

namespace tfring::testing {

using StreamOptions = InProcessDataHub::Options;

// A CpuBackend for every rank of a test, over in-process streams that move a random part of what
// they are asked to. Use from one thread.
class World {
 public:
  World(int size, const Config& config, StreamOptions options = {})
      : World(std::vector<Config>(size, config), std::move(options)) {}
  // A configuration for each rank, whose host is "h" and its number; algorithms are chosen as on
  // one host.
  explicit World(const std::vector<Config>& configs, StreamOptions options = {});
  // Over these transports instead, one for each rank, which have a HostMemory or have none.
  World(const std::vector<Config>& configs, std::vector<std::unique_ptr<DataTransport>> transports,
        bool share_memory = true);
  // Ranks on the hosts of these names.
  World(const std::vector<std::string>& hosts, const Config& config, StreamOptions options = {})
      : World(std::vector<Config>(hosts.size(), config), hosts, std::move(options)) {}
  // Aborts all, then destroys them.
  ~World();

  InProcessDataHub& streams() { return streams_; }
  CpuBackend& backend(Rank rank) { return *backends_[rank]; }
  // Aborts a rank's backend and closes its transport.
  void Destroy(Rank rank);
  int size() const { return static_cast<int>(backends_.size()); }

  // Blocks until the collective with this sequence has ended on this rank.
  Completion Wait(Rank rank, uint64_t sequence);

  // How many completions with this sequence this rank has had.
  int Count(Rank rank, uint64_t sequence);

 private:
  void Start(const std::vector<Config>& configs, const std::vector<std::string>& hosts,
             std::vector<std::unique_ptr<DataTransport>> transports);
  World(const std::vector<Config>& configs, const std::vector<std::string>& hosts,
        StreamOptions options);

  InProcessDataHub streams_;
  std::mutex mutex_;  // guards completions_
  std::condition_variable changed_;
  std::map<std::pair<Rank, uint64_t>, std::vector<Completion>> completions_;
  std::vector<std::unique_ptr<CpuBackend>> backends_;
};

// Settings under which small data is enough to reach every algorithm.
Config SmallConfig();

std::vector<Rank> FirstRanks(int size);

// The part of rank `self` in an allreduce of "x", which sums `data` in place on the first `size`
// ranks.
Collective Sum(std::vector<float>* data, int self, int size, uint64_t sequence);

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_BACKEND_WORLD_H_
