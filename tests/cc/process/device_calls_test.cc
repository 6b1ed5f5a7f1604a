// Calls on tensors in device memory, through the whole runtime of several ranks in one process:
// they are staged, whatever the other ranks have.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/gpu/cuda/stream.h"
#include "ops/runtime/backend/routing_backend.h"
#include "tests/cc/gpu/cuda/fake_gpu.h"
#include "tests/cc/gpu/nccl/gpu_world.h"
#include "tests/cc/gpu/staging/staging_of.h"
#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::device_calls_test {
namespace {

using testing::Fake;
using testing::FakeDriver;
using testing::Framework;
using testing::StagingOf;

// As the factory does it, with the fake NCCL.
void WithNccl(RankRuntimeParts* parts) {
  const auto anything = [](CollectiveKind, DataType, ReduceOp) { return true; };
  auto devices = std::make_shared<CudaDevices>(FakeDriver(), anything);
  parts->wrap_stream = [devices](void* stream) { return devices->Wrap(stream); };
  parts->make_backend = [make = std::move(parts->make_backend), rank = parts->engine.rank](
                            CompletionSink sink, ThreadPool* pool) {
    const auto make_cpu = [&](CompletionSink inner) { return make(std::move(inner), pool); };
    const auto make_nccl = [rank](CpuOrder* order,
                                  CompletionSink sink) -> std::unique_ptr<CollectiveBackend> {
      NcclOptions options = testing::FakeOptions(rank);
      options.cpu_order = order;
      return std::make_unique<NcclBackend>(std::move(options), std::move(sink));
    };
    return std::make_unique<RoutingBackend>(make_cpu, StagingOf(), make_nccl, std::move(sink));
  };
}

// Without NCCL.
void WithDevices(RankRuntimeParts* parts) {
  auto devices = std::make_shared<CudaDevices>(FakeDriver(), DeviceRule());
  parts->wrap_stream = [devices](void* stream) { return devices->Wrap(stream); };
  parts->make_backend = [make = std::move(parts->make_backend)](CompletionSink sink,
                                                                ThreadPool* pool) {
    const auto make_cpu = [&](CompletionSink inner) { return make(std::move(inner), pool); };
    return std::make_unique<RoutingBackend>(make_cpu, StagingOf(), nullptr, std::move(sink));
  };
}

std::vector<char> Bytes(const std::vector<float>& values) {
  const char* const begin = reinterpret_cast<const char*>(values.data());
  return std::vector<char>(begin, begin + values.size() * sizeof(float));
}

// A call whose tensors are on a GPU.
class GpuCall {
 public:
  GpuCall(Call* call, Framework* gpu, bool early) : call_(call), gpu_(gpu), early_(early) {}
  ~GpuCall() {
    for (CuDevicePtr memory : memory_) gpu_->Free(memory);
  }

  void Start(RankRuntime* rank) {
    LocalCall local = call_->MakeLocalCall();
    auto stream = rank->WrapStream(gpu_->stream());
    ASSERT_TRUE(stream.ok());
    for (size_t i = 0; i < local.buffers.size(); ++i) {
      TensorBuffer& buffer = local.buffers[i];
      buffer.input = On(Bytes(call_->inputs[i]));
      if (buffer.output == nullptr) continue;
      buffer.output = On(Bytes(call_->outputs[i]));
      outputs_.push_back(buffer);
    }
    if (local.allocate) {
      local.allocate = [this](int, const Shape& shape) -> Result<void*> {
        TensorBuffer buffer;
        buffer.output_bytes = NumElements(shape) * static_cast<int64_t>(sizeof(float));
        buffer.output = On(std::vector<char>(static_cast<size_t>(buffer.output_bytes), 0x55));
        outputs_.push_back(buffer);
        return buffer.output;
      };
    }
    EXPECT_TRUE((*stream)->MarkReady().ok());
    local.stream = stream_ = *stream;
    local.early = early_;
    local.keeps = keeps_;
    rank->Enqueue(call_->request, std::move(local));
  }

  // What the framework sees on its stream after it has waited for the results.
  std::vector<float> Output(size_t tensor) {
    EXPECT_TRUE(stream_->WaitForResults().ok());
    const auto bytes = static_cast<size_t>(outputs_[tensor].output_bytes);
    auto fetched = gpu_->Fetch(reinterpret_cast<CuDevicePtr>(outputs_[tensor].output), bytes);
    gpu_->Wait();
    std::vector<float> values(bytes / sizeof(float));
    std::copy(fetched->begin(), fetched->end(), reinterpret_cast<char*>(values.data()));
    return values;
  }
  long keepers() const { return keeps_.use_count() - 1; }

 private:
  void* On(const std::vector<char>& bytes) {
    memory_.push_back(gpu_->Allocate(bytes));
    return reinterpret_cast<void*>(memory_.back());
  }

  Call* const call_;
  Framework* const gpu_;
  const bool early_;
  std::shared_ptr<DeviceStream> stream_;
  const std::shared_ptr<int> keeps_ = std::make_shared<int>(0);
  std::vector<CuDevicePtr> memory_;
  std::vector<TensorBuffer> outputs_;
};

// The call of each rank, of which some are on a GPU.
struct Ranks {
  explicit Ranks(int size, bool share_one = false) {
    for (int rank = 0; rank < size; ++rank) {
      gpus.push_back(std::make_unique<Framework>(share_one ? 0 : rank));
    }
  }
  void Run(Job* job, const std::function<bool(int)>& on_gpu, bool early,
           const std::function<std::unique_ptr<Call>(int)>& make,
           const std::function<void(const std::vector<float>&, int)>& check) {
    Calls calls;
    std::map<int, std::unique_ptr<GpuCall>> on_gpus;
    for (int rank = 0; rank < job->size(); ++rank) {
      calls.push_back(make(rank));
      if (on_gpu(rank)) {
        on_gpus[rank] = std::make_unique<GpuCall>(calls[rank].get(), gpus[rank].get(), early);
        on_gpus[rank]->Start(&(*job)[rank]);
      } else {
        calls[rank]->Start(&(*job)[rank]);
      }
    }
    for (int rank = 0; rank < job->size(); ++rank) {
      EXPECT_EQ(calls[rank]->Wait().ToString(), OkStatus().ToString());
      check(on_gpus.count(rank) != 0 ? on_gpus[rank]->Output(0) : calls[rank]->outputs[0], rank);
    }
    for (auto& [rank, call] : on_gpus) {
      for (int i = 0; i < 20000 && call->keepers() > 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_EQ(call->keepers(), 0L);
    }
  }
  std::vector<std::unique_ptr<Framework>> gpus;
};

TEST(SomeRanksHaveGpusAndOthersNot) {
  for (int size = 1; size <= 4; ++size) {
    Fake().Reset();
    Fake().Set("seed", size);
    Ranks ranks(size);
    Job job(size, Link::kInProcess, Config(), kNoRank, WithDevices);
    for (bool early : {false, true}) {
      for (int which = 0; which < 3; ++which) {
        const auto on_gpu = [&](int rank) {
          return which == 0 || (which == 1 ? rank % 2 == 0 : rank == size - 1);
        };
        const std::string name = std::to_string(which) + (early ? "early" : "late");
        ranks.Run(
            &job, on_gpu, early,
            [&](int rank) { return Allreduce("r" + name, {100}, static_cast<float>(rank + 1)); },
            [&](const std::vector<float>& values, int) {
              EXPECT_TRUE(AllEqual(values, static_cast<float>(size * (size + 1) / 2)));
            });
        ranks.Run(
            &job, on_gpu, early,
            [&](int rank) {
              return Single(CollectiveKind::kAllgather, "g" + name, {rank + 1, 3},
                            static_cast<float>(rank));
            },
            [&](const std::vector<float>& values, int) {
              ASSERT_EQ(values.size(), static_cast<size_t>(3 * size * (size + 1) / 2));
              EXPECT_EQ(values.front(), 0.0f);
              EXPECT_EQ(values.back(), static_cast<float>(size - 1));
            });
      }
    }
    EXPECT_EQ(Fake().Count("blocking_calls"), 0L);
  }
}

// The members of a plan meet, in arenas or not, before the plan itself goes through arenas.
TEST(RanksOfOneHostThatCannotUseNcclGoThroughSharedMemory) {
  for (bool share_one : {true, false}) {
    Fake().Reset();
    Ranks ranks(2, share_one);
    Job job(2, Link::kSharedMemory, Config(), kNoRank, WithNccl);
    for (int i = 0; i < 20; ++i) {
      ranks.Run(
          &job, [](int) { return true; }, false,
          [&](int rank) {
            return Allreduce("x" + std::to_string(i % 3), {100}, static_cast<float>(rank + 1));
          },
          [](const std::vector<float>& values, int) { EXPECT_TRUE(AllEqual(values, 3.0f)); });
    }
  }
}

// What repeats would be locked if it were in CPU memory. Rank 0 has begun a call when rank 1
// joins.
TEST(ARankJoinsWhileAnotherGoesOnWithACallThatRepeats) {
  Config config;
  config.lock_schedule = true;
  for (Link link : {Link::kInProcess, Link::kSharedMemory}) {
    for (bool both : {true, false}) {
      Fake().Reset();
      Ranks ranks(2);
      Job job(2, link, config, kNoRank, WithDevices);
      for (int round = 0; round < 10; ++round) {
        ranks.Run(
            &job, [&](int rank) { return both || rank == 0; }, true,
            [](int rank) { return Allreduce("x", {100}, static_cast<float>(rank + 1)); },
            [](const std::vector<float>& values, int) { EXPECT_TRUE(AllEqual(values, 3.0f)); });
      }
      auto alone = Allreduce("x", {100}, 1.0f);
      GpuCall on_gpu(alone.get(), ranks.gpus[0].get(), true);
      on_gpu.Start(&job[0]);
      Calls joins;
      for (int rank : {1, 0}) {
        joins.push_back(Bare(CollectiveKind::kJoin, "join"));
        joins.back()->Start(&job[rank]);
        if (rank == 0) continue;
        EXPECT_EQ(alone->Wait().ToString(), OkStatus().ToString());
        EXPECT_TRUE(AllEqual(on_gpu.Output(0), 1.0f));
      }
      for (auto& join : joins) EXPECT_EQ(join->Wait().ToString(), OkStatus().ToString());
      while (on_gpu.keepers() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// The framework's streams are far behind: that is no reason to give up what was planned.
TEST(ShutdownWaitsForTheFrameworksStreams) {
  Fake().Reset();
  Ranks ranks(2);
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.push_back(std::make_unique<Job>(2, Link::kInProcess, Config(), kNoRank, WithDevices));
  jobs.push_back(std::make_unique<Job>(2, Link::kInProcess, Config(), kNoRank, WithNccl));
  Calls calls;
  std::vector<std::unique_ptr<GpuCall>> on_gpus;
  Fake().Set("hold", 1);
  for (auto& job : jobs) {
    for (int rank = 0; rank < 2; ++rank) {
      calls.push_back(Allreduce("last", {1000}, 1.0f));
      on_gpus.push_back(
          std::make_unique<GpuCall>(calls.back().get(), ranks.gpus[rank].get(), false));
      on_gpus.back()->Start(&(*job)[rank]);
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until there are plans
  std::thread release([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2700));
    Fake().Set("hold", 0);
  });
  std::thread other([&jobs] { jobs[1].reset(); });
  jobs[0].reset();
  other.join();
  release.join();
  for (auto& call : calls) EXPECT_EQ(call->Wait().ToString(), OkStatus().ToString());
}

TEST(TheDriverIsLoadedWithTheFirstStream) {
  Fake().Reset();
  Ranks ranks(1);
  DeviceOptions options;
  options.config.cuda_driver = "libnone_such.so.1";
  auto missing = tfring_device_functions()->make(options)->Wrap(ranks.gpus[0]->stream());
  EXPECT_CONTAINS(missing.status().ToString(), "libnone_such.so.1 cannot be loaded");
  options.config.cuda_driver = FakeDriver();
  auto wrapped = tfring_device_functions()->make(options)->Wrap(ranks.gpus[0]->stream());
  EXPECT_TRUE(wrapped.ok());
}

TEST(WrapStreamSaysWhyItCannot) {
  InitOptions options;
  options.hosts = {"a"};
  ASSERT_TRUE(ProcessRuntime::Get().Init(options).ok());
  EXPECT_CONTAINS((*ProcessRuntime::Get().Current())->WrapStream(nullptr).status().ToString(),
                  "tfring's code for GPUs cannot be loaded (libtfring_cuda.so");  // not beside this
  ProcessRuntime::Get().Shutdown();
  Job host_only(1, Link::kInProcess);
  EXPECT_TRUE(host_only[0].WrapStream(nullptr).status().code() == StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tfring::device_calls_test
