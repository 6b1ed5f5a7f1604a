#include "tests/cc/gpu/nccl/gpu_world.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "ops/runtime/backend/cpu_backend.h"
#include "ops/runtime/base/check.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/staging/staging_of.h"

namespace tfring::testing {
namespace {

template <typename Function>
Function* FakeFunction(const char* name) {
  static void* const library = dlopen(TFRING_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  auto* function = reinterpret_cast<Function*>(dlsym(library, name));
  TFRING_CHECK(function != nullptr) << TFRING_FAKE_NCCL << " has no " << name;
  return function;
}

void* Address(CuDevicePtr memory) { return reinterpret_cast<void*>(memory); }

}  // namespace

void SetNccl(const char* what, long value) {
  FakeFunction<decltype(FakeNcclSet)>("FakeNcclSet")(what, value);
}
void ResetNccl() { FakeFunction<decltype(FakeNcclReset)>("FakeNcclReset")(); }
long CountNccl(const char* what) {
  return FakeFunction<decltype(FakeNcclCount)>("FakeNcclCount")(what);
}

NcclOptions FakeOptions(Rank self) {
  static const unsigned char image[] = "an image for the fake driver, which knows kernels by name";
  NcclOptions options;
  options.self = self;
  options.config = SmallConfig();
  options.config.nccl_library = TFRING_FAKE_NCCL;
  options.pack_images = {{0, image, sizeof(image)}};
  options.init_limit = 20 * kSecond;
  options.abort_limit = 2 * kSecond;
  return options;
}

GpuWorld::GpuWorld(int size, const Change& change, std::vector<int> gpus)
    : devices_(FakeDriver(), [](CollectiveKind, DataType, ReduceOp) { return true; }),
      streams_(size, InProcessDataHub::Options()) {
  Start(size, SmallConfig(), gpus, {}, [change](Rank rank) -> RoutingBackend::MakeDevice {
    return
        [rank, change](CpuOrder* order, CompletionSink sink) -> std::unique_ptr<CollectiveBackend> {
          NcclOptions options = FakeOptions(rank);
          if (change) change(&options);
          options.cpu_order = order;
          return std::make_unique<NcclBackend>(std::move(options), std::move(sink));
        };
  });
}

GpuWorld::GpuWorld(int size, const StagingOptions& staging, const Config& config)
    : devices_(FakeDriver(), DeviceRule()), streams_(size, InProcessDataHub::Options()) {
  Start(size, config, {}, staging, [](Rank) { return RoutingBackend::MakeDevice(); });
}

void GpuWorld::Start(int size, const Config& config, const std::vector<int>& gpus,
                     const StagingOptions& staging,
                     const std::function<RoutingBackend::MakeDevice(Rank)>& device_of) {
  (void)Cu();  // starts the driver with its devices
  for (Rank rank = 0; rank < size; ++rank) {
    OneRank one;
    one.framework = std::make_unique<Framework>(gpus.empty() ? rank : gpus[rank]);
    auto make_cpu = [&, rank](CompletionSink sink) -> std::unique_ptr<CollectiveBackend> {
      return std::make_unique<CpuBackend>(rank, config, streams_.Endpoint(rank), sink);
    };
    one.backend = std::make_unique<RoutingBackend>(
        make_cpu, StagingOf(staging), device_of(rank), [this, rank](Completion completion) {
          std::lock_guard<std::mutex> lock(mutex_);
          completions_[{rank, completion.sequence}].push_back(completion);
          changed_.notify_all();
        });
    ranks_.push_back(std::move(one));
  }
}

GpuWorld::~GpuWorld() {
  std::vector<std::thread> ends;
  for (OneRank& rank : ranks_) ends.emplace_back([&rank] { rank.backend.reset(); });
  for (std::thread& end : ends) end.join();
}

Collective GpuWorld::Prepare(const Job& job, const std::vector<Rank>& members, int self,
                             uint64_t sequence, bool early, bool mixed) {
  const Rank rank = members[self];
  Framework& framework = *ranks_[rank].framework;
  Tensors& tensors = tensors_[{rank, sequence}];
  Collective collective = MakeJob(job, members, self, sequence, &tensors.memory);
  collective.path = DataPath::kDevice;
  auto stream = devices_.Wrap(framework.stream());
  TFRING_CHECK(stream.ok()) << stream.status().ToString();
  for (size_t t = 0; t < collective.buffers.size(); ++t) {
    TensorBuffer& buffer = collective.buffers[t];
    const bool shared = buffer.output != nullptr && buffer.input == buffer.output;
    tensors.output_bytes.push_back(buffer.output_bytes);
    tensors.inputs.push_back(0);
    tensors.outputs.push_back(0);
    if (mixed && t % 2 == 1) continue;
    tensors.inputs[t] = framework.Allocate(tensors.memory.inputs[t]);
    tensors.outputs[t] = shared ? tensors.inputs[t] : framework.Allocate(tensors.memory.outputs[t]);
    buffer.input = Address(tensors.inputs[t]);
    buffer.output = Address(tensors.outputs[t]);
    if (mixed) collective.device_calls.push_back({*stream, t, 1, early, nullptr});
  }
  const Status ready = (*stream)->MarkReady();
  TFRING_CHECK(ready.ok()) << ready.ToString();
  tensors.stream = *stream;
  if (!mixed) {
    collective.device_calls.push_back({*stream, 0, collective.buffers.size(), early, nullptr});
  }
  return collective;
}

void GpuWorld::Submit(const Job& job, const std::vector<Rank>& members, int self, uint64_t sequence,
                      bool early) {
  ranks_[members[self]].backend->Submit(Prepare(job, members, self, sequence, early));
}

void GpuWorld::SubmitAll(const Job& job, const std::vector<Rank>& members, uint64_t sequence,
                         bool early) {
  for (size_t m = 0; m < members.size(); ++m) {
    Submit(job, members, static_cast<int>(m), sequence, early);
  }
}

void GpuWorld::Disband(const std::vector<Rank>& members) {
  for (OneRank& rank : ranks_) rank.backend->Disband(members);
}

Completion GpuWorld::Wait(Rank rank, uint64_t sequence, CompletionStage stage) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::vector<Completion>& list = completions_[{rank, sequence}];
  const auto of_stage = [stage](const Completion& c) {
    return c.stage == stage || c.stage == CompletionStage::kEnded;
  };
  changed_.wait(lock, [&] { return std::any_of(list.begin(), list.end(), of_stage); });
  return *std::find_if(list.begin(), list.end(), of_stage);
}

int GpuWorld::Count(Rank rank, uint64_t sequence, CompletionStage stage) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<Completion>& list = completions_[{rank, sequence}];
  return static_cast<int>(std::count_if(list.begin(), list.end(),
                                        [stage](const Completion& c) { return c.stage == stage; }));
}

bool GpuWorld::Has(Rank rank, uint64_t sequence, CompletionStage stage) {
  return Count(rank, sequence, stage) > 0;
}

std::vector<std::vector<char>> GpuWorld::Outputs(Rank rank, uint64_t sequence, bool follow) {
  const Tensors& tensors = tensors_[{rank, sequence}];
  std::vector<std::shared_ptr<std::vector<char>>> fetched;
  std::vector<std::vector<char>> outputs;
  if (follow) {
    const Status follows = tensors.stream->WaitForResults();
    TFRING_CHECK(follows.ok()) << follows.ToString();
  }
  for (size_t t = 0; t < tensors.outputs.size(); ++t) {
    const size_t bytes = tensors.output_bytes[t];
    if (tensors.inputs[t] == 0 && tensors.outputs[t] == 0 && !follow) {
      const std::vector<char>& own = tensors.memory.outputs[t];
      outputs.push_back(own.empty() ? tensors.memory.inputs[t] : own);
      continue;
    }
    if (follow) {
      fetched.push_back(ranks_[rank].framework->Fetch(tensors.outputs[t], bytes));
      continue;
    }
    std::vector<char> now(bytes);
    if (bytes > 0) std::memcpy(now.data(), Fake().View(tensors.outputs[t], bytes), bytes);
    outputs.push_back(std::move(now));
  }
  if (!follow) return outputs;
  ranks_[rank].framework->Wait();
  for (const auto& one : fetched) outputs.push_back(*one);
  return outputs;
}

void GpuWorld::AbortAll(const Status& status) {
  for (OneRank& rank : ranks_) rank.backend->Abort(status);
}

void GpuWorld::Free(Rank rank, uint64_t sequence) {
  Tensors& tensors = tensors_[{rank, sequence}];
  for (size_t t = 0; t < tensors.inputs.size(); ++t) {
    ranks_[rank].framework->Free(tensors.inputs[t]);
    if (tensors.outputs[t] != tensors.inputs[t]) {
      ranks_[rank].framework->Free(tensors.outputs[t]);
    }
  }
  tensors_.erase({rank, sequence});
}

std::string GpuWorld::Check(const Job& job, const std::vector<Rank>& members, uint64_t sequence,
                            bool early) {
  SubmitAll(job, members, sequence, early);
  return Finish(job, members, sequence, early);
}

std::string GpuWorld::Finish(const Job& job, const std::vector<Rank>& members, uint64_t sequence,
                             bool early) {
  const auto expected = CpuResults(job, members);
  std::string wrong;
  for (size_t m = 0; m < members.size(); ++m) {
    const CompletionStage stage = early ? CompletionStage::kLaunched : CompletionStage::kEnded;
    Completion completion = Wait(members[m], sequence, stage);
    const auto outputs = Outputs(members[m], sequence, early);
    if (early) completion = Wait(members[m], sequence);
    if (!completion.status.ok()) wrong += job.Text() + ": " + completion.status.ToString() + "; ";
    for (size_t t = 0; t < outputs.size(); ++t) {
      if (expected[m][t].empty() || SameResult(job, outputs[t], expected[m][t])) continue;
      wrong += job.Text() + ": tensor " + std::to_string(t) + " of rank " +
               std::to_string(members[m]) + " is wrong; ";
    }
    if (Count(members[m], sequence, CompletionStage::kEnded) != 1) wrong += "ended twice; ";
    Free(members[m], sequence);
  }
  return wrong;
}

bool IsFromAbort(Rank rank, const Status& status, const Status& reason) {
  if (status.ToString() == reason.ToString()) return true;
  return rank > 0 && status.message().find("connection closed by") != std::string::npos;
}

}  // namespace tfring::testing
