#ifndef TFRING_TESTS_CC_PROCESS_FIXTURE_H_
#define TFRING_TESTS_CC_PROCESS_FIXTURE_H_

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/backend/cpu_backend.h"
#include "ops/runtime/process/rank_runtime_parts.h"
#include "tests/cc/test.h"
#include "tests/cc/transport/fixture.h"
#include "tests/cc/transport/in_process.h"
#include "tests/cc/transport/shared_host.h"

// Several ranks in one process, each a RankRuntime of its own, and calls that can be waited for.
namespace tfring {

// The connections of every rank of a job of `size`: a control star and a data mesh.
struct JobSockets {
  JobSockets(int size, Link link) : control(size), data(size) {
    for (Rank a = 0; a < size; ++a) {
      for (Rank b = a + 1; b < size; ++b) {
        std::tie(data[a][b], data[b][a]) = ConnectedSockets(link);
        if (a == 0) std::tie(control[a][b], control[b][a]) = ConnectedSockets(link);
      }
    }
  }
  std::vector<std::map<Rank, int>> control;
  std::vector<std::map<Rank, int>> data;
};

class Job {
 public:
  // `mute` has connections but does nothing with them, until Cut closes them. `change`, if there is
  // one, may change what a rank is made of.
  Job(int size, Link link, Config config = Config(), Rank mute = kNoRank,
      const std::function<void(RankRuntimeParts*)>& change = nullptr) {
    JobSockets sockets(link == Link::kInProcess ? 1 : size, link);
    InProcessControlHub control_hub(size);
    InProcessDataHub data_hub(size);
    auto shared = link == Link::kSharedMemory ? SharedHost(size)
                                              : std::vector<std::unique_ptr<DataTransport>>(size);
    for (Rank rank = 0; rank < size; ++rank) {
      RankRuntimeParts parts;
      parts.engine.rank = rank;
      parts.engine.size = size;
      parts.engine.config = config;
      for (Rank r = 0; r < size; ++r) parts.engine.hosts.push_back("host" + std::to_string(r));
      auto data = std::make_shared<std::unique_ptr<DataTransport>>();
      if (link == Link::kInProcess) {
        parts.control = control_hub.Endpoint(rank);
        *data = data_hub.Endpoint(rank);
      } else {
        parts.control = ControlOver(sockets.control[rank]);
        *data = shared[rank] ? std::move(shared[rank]) : DataOver(sockets.data[rank]);
        fds_.push_back({sockets.control[rank], sockets.data[rank]});
      }
      if (rank == mute) {
        mute_control_ = std::move(parts.control);
        mute_data_ = std::move(*data);
        ranks_.push_back(nullptr);
        continue;
      }
      parts.make_backend = [=](CompletionSink sink,
                               ThreadPool* pool) -> std::unique_ptr<CollectiveBackend> {
        return std::make_unique<CpuBackend>(rank, config, std::move(*data), std::move(sink),
                                            std::vector<std::string>(), pool);
      };
      if (change) change(&parts);
      auto started = RankRuntime::Start(std::move(parts));
      ranks_.push_back(started.ok() ? std::move(*started) : nullptr);
    }
  }
  ~Job() { ShutdownAll(); }

  int size() const { return static_cast<int>(ranks_.size()); }
  RankRuntime& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }

  // As processes do: all at about the same time.
  void ShutdownAll() {
    std::vector<std::future<void>> ending;
    for (auto& rank : ranks_) {
      if (rank == nullptr) continue;
      ending.push_back(std::async(std::launch::async, [&rank] { rank->Shutdown(); }));
    }
  }

  // Cuts every connection of `rank`, as its death would.
  void Cut(Rank rank) {
    if (ranks_[static_cast<size_t>(rank)] == nullptr) {
      mute_control_.reset();
      mute_data_.reset();
      return;
    }
    for (const auto& sockets : {fds_[rank].first, fds_[rank].second}) {
      for (auto [peer, fd] : sockets) ::shutdown(fd, SHUT_RDWR);
    }
  }

 private:
  std::vector<std::unique_ptr<RankRuntime>> ranks_;
  std::unique_ptr<ControlTransport> mute_control_;
  std::unique_ptr<DataTransport> mute_data_;
  std::vector<std::pair<std::map<Rank, int>, std::map<Rank, int>>> fds_;
};

// One call on float32 tensors with its memory and its outcome.
class Call {
 public:
  Call(CollectiveKind kind, std::string name) {
    request.kind = kind;
    request.name = std::move(name);
  }

  // An input of this shape, all elements `value`.
  Call& Tensor(Shape shape, float value) {
    inputs.emplace_back(NumElements(shape), value);
    request.shapes.push_back(std::move(shape));
    return *this;
  }

  void Start(RankRuntime* rank) { rank->Enqueue(request, MakeLocalCall()); }

  LocalCall MakeLocalCall() {
    LocalCall local;
    outputs.resize(inputs.size());
    const bool allocates = Traits(request.kind).allocates_output();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto bytes = static_cast<int64_t>(inputs[i].size() * sizeof(float));
      if (!allocates) outputs[i].assign(inputs[i].size(), -1.0f);
      local.buffers.push_back({inputs[i].data(), allocates ? nullptr : outputs[i].data(), bytes,
                               allocates ? 0 : bytes});
    }
    if (allocates) {
      local.allocate = [this](int tensor, const Shape& shape) -> Result<void*> {
        if (refuse_memory) return Internal("no memory for test");
        output_shapes.push_back(shape);
        outputs.resize(std::max(outputs.size(), static_cast<size_t>(tensor) + 1));
        outputs[tensor].assign(NumElements(shape), -1.0f);
        return static_cast<void*>(outputs[tensor].data());
      };
    }
    local.announce = [this](const std::vector<int64_t>& told) { values = told; };
    local.done = [this](const Status& status) { outcome_.set_value(status); };
    return local;
  }

  // Internal "timed out" after 30 s. A second outcome would throw in set_value.
  Status Wait() {
    if (future_.wait_for(std::chrono::seconds(30)) != std::future_status::ready) {
      return Internal("timed out");
    }
    return future_.get();
  }
  bool Ended() const {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  Request request;
  bool refuse_memory = false;
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> outputs;
  std::vector<Shape> output_shapes;
  std::vector<int64_t> values;  // what was announced

 private:
  std::promise<Status> outcome_;
  std::future<Status> future_ = outcome_.get_future();
};

// A call that carries no tensor.
inline std::unique_ptr<Call> Bare(CollectiveKind kind, const std::string& name) {
  return std::make_unique<Call>(kind, name);
}

// A call of one tensor.
inline std::unique_ptr<Call> Single(CollectiveKind kind, const std::string& name, Shape shape,
                                    float value) {
  auto call = std::make_unique<Call>(kind, name);
  call->Tensor(std::move(shape), value);
  return call;
}

inline std::unique_ptr<Call> Allreduce(const std::string& name, Shape shape, float value) {
  return Single(CollectiveKind::kAllreduce, name, std::move(shape), value);
}

using Calls = std::vector<std::unique_ptr<Call>>;

// Starts what `make` gives for each rank; null where a rank makes no call.
inline Calls StartAll(Job* job, const std::function<std::unique_ptr<Call>(int rank)>& make) {
  Calls calls;
  for (int r = 0; r < job->size(); ++r) {
    calls.push_back(make(r));
    if (calls[r]) calls[r]->Start(&(*job)[r]);
  }
  return calls;
}

// The same, and waits until all have ended well.
inline Calls RunAll(Job* job, const std::function<std::unique_ptr<Call>(int rank)>& make) {
  Calls calls = StartAll(job, make);
  for (auto& call : calls) {
    if (call) EXPECT_EQ(call->Wait().ToString(), OkStatus().ToString());
  }
  return calls;
}

inline bool AllEqual(const std::vector<float>& values, float expected) {
  for (float v : values) {
    if (v != expected) return false;
  }
  return !values.empty();
}

}  // namespace tfring

#endif  // TFRING_TESTS_CC_PROCESS_FIXTURE_H_
