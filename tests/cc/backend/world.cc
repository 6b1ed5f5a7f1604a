#include "tests/cc/backend/world.h"

#include <numeric>
#include <string>

#include "tests/cc/test.h"

namespace tfring::testing {

namespace {

StreamOptions Randomized(StreamOptions options) {
  if (options.seed == 0) options.seed = 1;
  return options;
}

std::vector<std::string> HostOfEach(size_t size) {
  std::vector<std::string> hosts;
  for (size_t rank = 0; rank < size; ++rank) hosts.push_back("h" + std::to_string(rank));
  return hosts;
}

std::vector<Config> WithoutHierarchy(std::vector<Config> configs) {
  for (Config& config : configs) config.hierarchical_allreduce = Hierarchy::kNever;
  return configs;
}

}  // namespace

World::World(const std::vector<Config>& configs, StreamOptions options)
    : World(WithoutHierarchy(configs), HostOfEach(configs.size()), std::move(options)) {}

World::World(const std::vector<Config>& configs, const std::vector<std::string>& hosts,
             StreamOptions options)
    : streams_(static_cast<int>(configs.size()), Randomized(std::move(options))) {
  std::vector<std::unique_ptr<DataTransport>> ends;
  for (size_t rank = 0; rank < configs.size(); ++rank) {
    ends.push_back(streams_.Endpoint(static_cast<Rank>(rank)));
  }
  Start(configs, hosts, std::move(ends));
}

World::World(const std::vector<Config>& configs,
             std::vector<std::unique_ptr<DataTransport>> transports, bool share_memory)
    : streams_(static_cast<int>(configs.size()), StreamOptions()) {
  for (const auto& transport : transports) {
    ASSERT_TRUE(transport != nullptr && (transport->host_memory() != nullptr) == share_memory);
  }
  Start(configs, HostOfEach(configs.size()), std::move(transports));
}

void World::Start(const std::vector<Config>& configs, const std::vector<std::string>& hosts,
                  std::vector<std::unique_ptr<DataTransport>> transports) {
  const int size = static_cast<int>(configs.size());
  for (Rank rank = 0; rank < size; ++rank) {
    auto sink = [this, rank](Completion completion) {
      std::lock_guard<std::mutex> lock(mutex_);
      completions_[{rank, completion.sequence}].push_back(completion);
      changed_.notify_all();
    };
    backends_.push_back(std::make_unique<CpuBackend>(rank, configs[rank],
                                                     std::move(transports[rank]), sink, hosts));
  }
}

World::~World() {
  for (auto& backend : backends_) {
    if (backend != nullptr) backend->Abort(Cancelled("the test is over"));
  }
  backends_.clear();
}

void World::Destroy(Rank rank) {
  backends_[rank]->Abort(Cancelled("the rank leaves"));
  backends_[rank].reset();
}

Completion World::Wait(Rank rank, uint64_t sequence) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::vector<Completion>& list = completions_[{rank, sequence}];
  changed_.wait(lock, [&] { return !list.empty(); });
  return list.front();
}

int World::Count(Rank rank, uint64_t sequence) {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(completions_[{rank, sequence}].size());
}

Config SmallConfig() {
  Config config;
  config.direct_max_bytes = 64;
  config.tree_max_bytes = 1024;
  config.piece_bytes = 1000;
  return config;
}

std::vector<Rank> FirstRanks(int size) {
  std::vector<Rank> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Collective Sum(std::vector<float>* data, int self, int size, uint64_t sequence) {
  Collective c;
  c.sequence = sequence;
  c.what = "allreduce of 'x'";
  c.kind = CollectiveKind::kAllreduce;
  c.dtype = DataType::kFloat32;
  c.self = self;
  c.members = FirstRanks(size);
  const int64_t bytes = static_cast<int64_t>(data->size()) * 4;
  c.buffers.push_back({data->data(), data->data(), bytes, bytes});
  return c;
}

}  // namespace tfring::testing
