#ifndef TFRING_TESTS_CC_GPU_STAGING_STAGED_WORLD_H_
#define TFRING_TESTS_CC_GPU_STAGING_STAGED_WORLD_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "ops/gpu/staging/staging.h"
#include "ops/runtime/backend/routing_backend.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/cuda/fake_gpu.h"

namespace tfring::testing {

// What all ranks agree on: a collective with random sizes.
struct Spec {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  int size = 1;
  int root = 0;
  bool in_place = false;
  // [tensor][from][to] elements that go from one member to another; of kinds where all members have
  // the same tensor, [tensor][0][0] is its size.
  std::vector<std::vector<std::vector<int64_t>>> elements;
};

// Any kind, dtype and op that the CPU backend can run.
Spec RandomSpec(int size, std::mt19937* random);
std::string Text(const Spec& spec);

// The part of a rank: sizes without memory, and what it puts in.
struct Part {
  Collective collective;
  std::vector<std::vector<char>> inputs;  // by tensor
};
Part MakePart(const Spec& spec, int self, uint64_t sequence);

// CPU memory for a part, and its results.
struct CpuMemory {
  void Attach(Part* part, bool in_place);
  std::vector<std::vector<char>> inputs, outputs;
  std::vector<std::vector<char>> Results(const Collective& collective) const;
};

// A RoutingBackend for every rank of a test, as threads of this process, with a GPU for each. Use
// from one thread.
class StagedWorld {
 public:
  explicit StagedWorld(int size, const Config& config = SmallConfig(),
                       const StagingOptions& staging = {});
  // Aborts all, then destroys them.
  ~StagedWorld();

  // Runs on the sink's thread for each completion, before anybody can Wait for it.
  std::function<void(Rank, const Completion&)> on_completion;

  Framework& gpu(Rank rank) { return *gpus_[rank]; }
  RoutingBackend& backend(Rank rank) { return *backends_[rank]; }
  InProcessDataHub& streams() { return streams_; }
  std::shared_ptr<CudaStream> Stream(Rank rank);

  // Blocks until the collective with this sequence has ended on this rank.
  Completion Wait(Rank rank, uint64_t sequence);
  bool Launched(Rank rank, uint64_t sequence);
  int Ends(Rank rank, uint64_t sequence);

 private:
  std::vector<std::unique_ptr<Framework>> gpus_;
  CudaDevices devices_;
  InProcessDataHub streams_;
  std::mutex mutex_;  // guards completions_
  std::condition_variable changed_;
  std::map<std::pair<Rank, uint64_t>, std::vector<Completion>> completions_;
  std::vector<std::unique_ptr<RoutingBackend>> backends_;
};

// A part of which some tensors are in device memory.
class DevicePart {
 public:
  // `on_device` says it for each tensor; each one is a call.
  DevicePart(StagedWorld* world, Rank rank, Part part, bool in_place,
             const std::vector<bool>& on_device, bool early);
  ~DevicePart();

  void Submit();
  // Enqueues reading the results on the framework's stream: what it would compute with.
  void ReadResults();
  // The results, once the framework's stream has come to them.
  std::vector<std::vector<char>> Results();
  // The results as they are in memory now, whatever is still on the framework's stream.
  std::vector<std::vector<char>> ResultsInMemory() const;
  // The device memory, which may be freed now.
  void Free();
  const Collective& collective() const { return collective_; }
  // Whether all its tensors are on the device, in calls whose results are used at kLaunched.
  bool early() const { return early_; }

 private:
  StagedWorld* const world_;
  const Rank rank_;
  const bool early_;
  Collective collective_;
  CpuMemory cpu_;
  std::vector<CuDevicePtr> inputs_, outputs_;  // 0: on the CPU
  std::vector<std::shared_ptr<std::vector<char>>> read_;
};

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_GPU_STAGING_STAGED_WORLD_H_
