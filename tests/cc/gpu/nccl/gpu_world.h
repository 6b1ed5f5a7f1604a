#ifndef TFRING_TESTS_CC_GPU_NCCL_GPU_WORLD_H_
#define TFRING_TESTS_CC_GPU_NCCL_GPU_WORLD_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/gpu/nccl/nccl_backend.h"
#include "ops/gpu/staging/staging.h"
#include "ops/runtime/backend/routing_backend.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/cuda/fake_gpu.h"
#include "tests/cc/gpu/nccl/jobs.h"
#include "tests/cc/transport/in_process.h"
#include "tests/fakes/nccl/fake_nccl.h"

namespace tfring::testing {

// The functions of the fake NCCL beside NCCL's.
void SetNccl(const char* what, long value);
void ResetNccl();
long CountNccl(const char* what);

// Options for rank `self` with the fake driver, the fake NCCL, pack kernels and short limits.
NcclOptions FakeOptions(Rank self);

// Ranks of one process, each with a GPU of the fake driver, a CPU backend, staging and an
// NcclBackend. Use from one thread. The destructor is a shutdown of all ranks.
class GpuWorld {
 public:
  using Change = std::function<void(NcclOptions*)>;

  // Rank r uses GPU r, or gpus[r] if that is given.
  explicit GpuWorld(int size, const Change& change = {}, std::vector<int> gpus = {});
  // Ranks without NCCL: all is staged.
  GpuWorld(int size, const StagingOptions& staging, const Config& config = SmallConfig());
  ~GpuWorld();

  int size() const { return static_cast<int>(ranks_.size()); }
  RoutingBackend& backend(Rank rank) { return *ranks_[rank].backend; }
  Framework& framework(Rank rank) { return *ranks_[rank].framework; }

  // This member's part, with its tensors on its GPU; its inputs are still being written by its
  // framework's stream. With `mixed`, which is not early, each second tensor is in CPU memory.
  Collective Prepare(const Job& job, const std::vector<Rank>& members, int self, uint64_t sequence,
                     bool early = false, bool mixed = false);
  void Submit(const Job& job, const std::vector<Rank>& members, int self, uint64_t sequence,
              bool early = false);
  void SubmitAll(const Job& job, const std::vector<Rank>& members, uint64_t sequence,
                 bool early = false);

  // The completion with kEnded, or with kLaunched if that is asked for and comes.
  Completion Wait(Rank rank, uint64_t sequence, CompletionStage stage = CompletionStage::kEnded);
  bool Has(Rank rank, uint64_t sequence, CompletionStage stage);
  // How many completions of this stage came.
  int Count(Rank rank, uint64_t sequence, CompletionStage stage);

  // What is in the outputs now; with `follow` (early) when the framework's stream has waited for
  // them.
  std::vector<std::vector<char>> Outputs(Rank rank, uint64_t sequence, bool follow = false);

  // Aborts the backends of all ranks with this status, rank 0 first.
  void AbortAll(const Status& status);

  // Tells all ranks that the process set of these members is removed.
  void Disband(const std::vector<Rank>& members);

  // Frees the tensors of a collective, as the framework does after `done`.
  void Free(Rank rank, uint64_t sequence);

  // Runs a job on all members and compares with the CPU backend. Empty if all is right.
  std::string Check(const Job& job, const std::vector<Rank>& members, uint64_t sequence,
                    bool early = false);
  // The second half: waits, compares, frees.
  std::string Finish(const Job& job, const std::vector<Rank>& members, uint64_t sequence,
                     bool early = false);

 private:
  struct Tensors {
    std::vector<CuDevicePtr> inputs;  // 0: in `memory`
    std::vector<CuDevicePtr> outputs;
    std::vector<size_t> output_bytes;
    JobMemory memory;
    std::shared_ptr<DeviceStream> stream;
  };
  struct OneRank {
    std::unique_ptr<Framework> framework;
    std::unique_ptr<RoutingBackend> backend;
  };
  using Key = std::pair<Rank, uint64_t>;

  void Start(int size, const Config& config, const std::vector<int>& gpus,
             const StagingOptions& staging,
             const std::function<RoutingBackend::MakeDevice(Rank)>& device_of);

  CudaDevices devices_;
  InProcessDataHub streams_;
  std::map<Key, Tensors> tensors_;
  std::mutex mutex_;  // guards completions_
  std::condition_variable changed_;
  std::map<Key, std::vector<Completion>> completions_;
  std::vector<OneRank> ranks_;
};

// Whether this status of a rank is what AbortAll(reason) leads to: a rank that was aborted after
// another one may have seen before that the other one had closed its connections.
bool IsFromAbort(Rank rank, const Status& status, const Status& reason);

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_GPU_NCCL_GPU_WORLD_H_
