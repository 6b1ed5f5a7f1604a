#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/process/fake_stream.h"
#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

// Calls on tensors of devices, with a backend that launches and ends what the test tells it to.
namespace tfring::launched_calls_test {
namespace {

// What one backend was given. Thread-safe.
class Script {
 public:
  void SetSink(CompletionSink sink) { sink_ = std::move(sink); }

  void Submit(Collective collective) {
    std::lock_guard<std::mutex> lock(mutex_);
    submitted_.push_back(std::move(collective));
    changed_.notify_all();
  }
  void Disband(const std::vector<Rank>& members) {
    std::lock_guard<std::mutex> lock(mutex_);
    disbanded_.push_back(members);
  }
  std::vector<std::vector<Rank>> Disbanded() {
    std::lock_guard<std::mutex> lock(mutex_);
    return disbanded_;
  }
  void Abort(const Status& why) {
    std::deque<Collective> ended;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended.swap(submitted_);
    }
    for (const Collective& collective : ended) sink_({collective.sequence, why});
  }

  // The oldest collective that has not ended, once it is there; with `behind`, one that came later.
  Collective Next(size_t behind = 0) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool there = changed_.wait_for(lock, std::chrono::seconds(30),
                                         [&] { return submitted_.size() > behind; });
    EXPECT_TRUE(there);
    return there ? submitted_[behind] : Collective();
  }
  void Launch(uint64_t sequence) {
    Completion completion;
    completion.sequence = sequence;
    completion.stage = CompletionStage::kLaunched;
    sink_(completion);
  }
  void End(uint64_t sequence, const Status& status = OkStatus()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto it = std::find_if(submitted_.begin(), submitted_.end(),
                                   [&](const Collective& c) { return c.sequence == sequence; });
      if (it == submitted_.end()) return;  // ended by Abort
      submitted_.erase(it);
    }
    sink_({sequence, status});
  }

 private:
  std::mutex mutex_;  // guards submitted_ and disbanded_
  std::condition_variable changed_;
  std::deque<Collective> submitted_;
  std::vector<std::vector<Rank>> disbanded_;
  CompletionSink sink_;
};

class ScriptedBackend : public CollectiveBackend {
 public:
  explicit ScriptedBackend(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  const char* name() const override { return "scripted"; }
  void Submit(Collective collective) override { script_->Submit(std::move(collective)); }
  void Disband(const std::vector<Rank>& members) override { script_->Disband(members); }
  void Abort(Status why) override { script_->Abort(why); }
  int64_t bytes_sent() const override { return 0; }
  int64_t wakeups() const override { return 0; }

 private:
  const std::shared_ptr<Script> script_;
};

// Two ranks.
struct DeviceJob {
  DeviceJob() {
    InProcessControlHub hub(2);
    Config config;
    config.max_plans_in_flight = 1;
    for (Rank rank : {0, 1}) {
      RankRuntimeParts parts;
      parts.engine.rank = rank;
      parts.engine.size = 2;
      parts.engine.config = config;
      parts.control = hub.Endpoint(rank);
      auto script = std::make_shared<Script>();
      scripts.push_back(script);
      parts.make_backend = [script](CompletionSink sink,
                                    ThreadPool*) -> std::unique_ptr<CollectiveBackend> {
        script->SetSink(std::move(sink));
        return std::make_unique<ScriptedBackend>(script);
      };
      ranks.push_back(std::move(*RankRuntime::Start(std::move(parts))));
    }
  }
  ~DeviceJob() {
    std::vector<std::future<void>> ending;
    for (auto& rank : ranks) {
      ending.push_back(std::async(std::launch::async, [&rank] { rank->Shutdown(); }));
    }
  }
  std::vector<std::shared_ptr<Script>> scripts;
  std::vector<std::unique_ptr<RankRuntime>> ranks;
};

// A call on device memory, and whether that memory is still kept.
struct DeviceCallOn {
  DeviceCallOn(RankRuntime* rank, const std::string& name, bool early)
      : call(Allreduce(name, {2}, 1)), stream(std::make_shared<FakeStream>()) {
    LocalCall local = call->MakeLocalCall();
    local.stream = stream;
    local.early = early;
    auto memory = std::make_shared<int>(1);
    kept = memory;
    local.keeps = std::move(memory);
    rank->Enqueue(call->request, std::move(local));
  }
  // Until the memory is released, 30 s at most.
  bool Released() const {
    for (int i = 0; i < 3000 && !kept.expired(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return kept.expired();
  }
  std::unique_ptr<Call> call;
  std::shared_ptr<FakeStream> stream;
  std::weak_ptr<int> kept;
};

TEST(AnEarlyCallIsDoneAtItsLaunchAndItsMemoryIsKeptUntilTheEnd) {
  DeviceJob job;
  std::vector<DeviceCallOn> first;
  std::vector<DeviceCallOn> second;
  for (Rank rank : {0, 1}) first.emplace_back(job.ranks[rank].get(), "x", true);
  for (Rank rank : {0, 1}) {
    const Collective collective = job.scripts[rank]->Next();
    EXPECT_TRUE(collective.path == DataPath::kDevice);
    EXPECT_EQ(collective.device_calls.size(), 1u);
    job.scripts[rank]->Launch(collective.sequence);
    EXPECT_EQ(first[rank].call->Wait().ToString(), "Ok");
  }
  // The same name again, in a plan that ends before the first.
  for (Rank rank : {0, 1}) second.emplace_back(job.ranks[rank].get(), "x", true);
  for (Rank rank : {0, 1}) {
    const uint64_t sequence = job.scripts[rank]->Next(1).sequence;
    job.scripts[rank]->Launch(sequence);
    EXPECT_EQ(second[rank].call->Wait().ToString(), "Ok");
    job.scripts[rank]->End(sequence);
    EXPECT_TRUE(second[rank].Released());
    EXPECT_TRUE(!first[rank].kept.expired());
    job.scripts[rank]->End(job.scripts[rank]->Next().sequence);
    EXPECT_TRUE(first[rank].Released());
  }
}

TEST(AFailureAfterDoneEndsWhatFollows) {
  DeviceJob job;
  std::vector<DeviceCallOn> calls;
  for (Rank rank : {0, 1}) calls.emplace_back(job.ranks[rank].get(), "x", true);
  uint64_t sequence = 0;
  for (Rank rank : {0, 1}) {
    sequence = job.scripts[rank]->Next().sequence;
    job.scripts[rank]->Launch(sequence);
    EXPECT_EQ(calls[rank].call->Wait().ToString(), "Ok");
  }
  job.scripts[1]->End(sequence, Internal("the device reports an error"));
  for (Rank rank : {0, 1}) {
    auto later = Allreduce("x", {2}, 1);
    later->Start(job.ranks[rank].get());
    EXPECT_CONTAINS(later->Wait().ToString(),
                    "Internal: rank 1 could not run 'x': the device reports an error");
    EXPECT_TRUE(calls[rank].Released());
  }
}

// Also those that are no members: they may have the same list of ranks for other calls.
TEST(TheBackendsOfAllRanksAreToldOfARemovedSet) {
  DeviceJob job;
  const auto run = [&job](CollectiveKind kind) {
    std::vector<std::unique_ptr<Call>> calls;
    for (Rank rank : {0, 1}) {
      calls.push_back(Bare(kind, "sets"));
      if (kind == CollectiveKind::kAddProcessSet) calls.back()->request.set_ranks = {1};
      if (kind == CollectiveKind::kRemoveProcessSet) calls.back()->request.removed_set = 1;
      calls.back()->Start(job.ranks[rank].get());
    }
    for (auto& call : calls) EXPECT_EQ(call->Wait().ToString(), "Ok");
  };
  run(CollectiveKind::kAddProcessSet);
  for (Rank rank : {0, 1}) EXPECT_TRUE(job.scripts[rank]->Disbanded().empty());
  run(CollectiveKind::kRemoveProcessSet);
  for (Rank rank : {0, 1}) {
    EXPECT_TRUE(job.scripts[rank]->Disbanded() == std::vector<std::vector<Rank>>{{1}});
  }
}

}  // namespace
}  // namespace tfring::launched_calls_test
