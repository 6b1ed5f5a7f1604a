// Many generations in one process: each is abandoned in another phase, by a seed, and the next one
// begins at once. Nothing of the old one may reach it, and nothing may be left of all of them.
#include <dirent.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/runtime/process/process_runtime.h"
#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::generations_test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kGenerations = 120;
#else
constexpr int kGenerations = 1000;
#endif

ProcessRuntime& Runtime() { return ProcessRuntime::Get(); }

int EntriesOf(const char* folder) {
  int count = 0;
  DIR* dir = opendir(folder);
  while (dir != nullptr && readdir(dir) != nullptr) ++count;
  if (dir != nullptr) closedir(dir);
  return count;
}

void WaitUntil(const std::function<bool()>& holds) {
  for (int i = 0; i < 60000 && !holds(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(holds());
}

void WaitUntilAllAreGone() {
  WaitUntil([] { return Runtime().abandoned() == 0; });
}

// One generation: this process is a rank of it, and peers with runtimes of their own the others.
class Generation {
 public:
  Generation(int size, Rank self, uint64_t nonce) : size_(size), self_(self), peers_(size) {
    JobSockets sockets(size, Link::kUnix);
    options.topology.rank = self;
    options.topology.size = size;
    options.control_fds = sockets.control[self];
    options.data_fds = sockets.data[self];
    options.nonce = nonce;
    options.record.enabled = false;
    for (Rank rank = 0; rank < size; ++rank) {
      if (rank == self) continue;
      RankRuntimeParts parts;
      parts.engine.rank = rank;
      parts.engine.size = size;
      parts.engine.nonce = nonce;
      parts.control = ControlOver(sockets.control[rank]);
      auto data = std::make_shared<std::unique_ptr<DataTransport>>(DataOver(sockets.data[rank]));
      parts.make_backend = [=](CompletionSink sink, ThreadPool* pool) {
        return std::make_unique<CpuBackend>(rank, Config(), std::move(*data), std::move(sink),
                                            std::vector<std::string>(), pool);
      };
      auto started = RankRuntime::Start(std::move(parts));
      if (started.ok()) peers_[rank] = std::move(*started);
    }
  }
  // The ranks of a generation end at about the same time, in any order.
  ~Generation() { AbandonPeers(); }

  // A call of every rank, or of this one alone. Returns which of the calls of this rank it is.
  size_t Call(const std::string& name, int64_t elements, bool everywhere,
              const std::function<void()>& in_done = nullptr) {
    const size_t index = Prepare(name, elements);
    for (Rank rank = 0; rank < size_ && everywhere; ++rank) {
      if (rank == self_) continue;
      theirs_.push_back(Allreduce(name, {elements}, 1.0f));
      theirs_.back()->Start(peers_[rank].get());
    }
    Start(index, in_done);
    return index;
  }
  size_t Prepare(const std::string& name, int64_t elements) {
    mine_.push_back(Allreduce(name, {elements}, 1.0f));
    outcomes_.emplace_back();
    return mine_.size() - 1;
  }
  void Start(size_t index, const std::function<void()>& in_done = nullptr) {
    LocalCall local = mine_[index]->MakeLocalCall();
    if (in_done) {
      local.done = [in_done, done = std::move(local.done)](const Status& status) {
        in_done();
        done(status);
      };
    }
    EnqueueIn(0, mine_[index]->request, std::move(local));
  }

  Status Wait(size_t index) {
    if (!outcomes_[index]) outcomes_[index] = mine_[index]->Wait();
    return *outcomes_[index];
  }
  // All calls of this rank have ended: well, with the sum over all ranks, or as those of a
  // generation that is over do. (A second end would throw in the promise of the call.)
  void CheckMine() {
    for (size_t i = 0; i < mine_.size(); ++i) {
      const Status status = Wait(i);
      if (status.ok()) {
        EXPECT_TRUE(AllEqual(mine_[i]->outputs[0], static_cast<float>(size_)));
        continue;
      }
      const bool over = status.code() == StatusCode::kAborted ||
                        status.code() == StatusCode::kUnavailable ||
                        status.code() == StatusCode::kFailedPrecondition;
      EXPECT_TRUE(over || status.code() == StatusCode::kCancelled);
      if (over) EXPECT_CONTAINS(status.message(), "generation " + std::to_string(number));
    }
  }
  void CheckTheirs() {
    for (auto& call : theirs_) {
      if (call->Wait().ok()) {
        EXPECT_TRUE(AllEqual(call->outputs[0], static_cast<float>(size_)));
      }
    }
  }

  void AbandonPeers() {
    std::atomic<int> gone{0};
    int left = 0;
    for (auto& peer : peers_) {
      if (peer == nullptr) continue;
      peer->Abandon(Unavailable("over"), FailedPrecondition("over"), [&gone] { ++gone; });
      peer.reset();
      ++left;
    }
    WaitUntil([&] { return gone == left; });
  }

  InitOptions options;
  uint64_t number = 0;

 private:
  const int size_;
  const Rank self_;
  Calls mine_;                                   // these outlive the peers
  std::vector<std::optional<Status>> outcomes_;  // of these, where it has been waited for
  Calls theirs_;
  std::vector<std::unique_ptr<RankRuntime>> peers_;
};

void Abandon() { Runtime().Abandon("for test"); }

void AwaitPlan() {
  const std::shared_ptr<RankRuntime> runtime = *Runtime().Current();
  WaitUntil([&] { return runtime->Counters()["plans"] > 0; });
}

// What goes on when the generation is abandoned.
void BeforeAnyCall(Generation*) { Abandon(); }

void WhileACallWaitsForOthers(Generation* now) {
  for (int i = 0; i < 5; ++i) now->Call("w" + std::to_string(i), 8, false);
  Abandon();
}

void RightAfterTheCalls(Generation* now) {
  for (int i = 0; i < 5; ++i) now->Call("n" + std::to_string(i), 8, true);
  Abandon();
}

void InMidCollective(Generation* now) {
  now->Call("big", 1 << 18, true);
  AwaitPlan();
  Abandon();
}

void BetweenCompletions(Generation* now) {
  for (int i = 0; i < 20; ++i) now->Call("c" + std::to_string(i), 100, true);
  AwaitPlan();
  Abandon();
}

void WhileADoneRuns(Generation* now) {
  std::promise<void> runs;
  std::promise<void> go_on;
  const size_t call = now->Call("d", 8, true, [&] {
    runs.set_value();
    go_on.get_future().wait();
  });
  now->Call("behind it", 8, true);
  runs.get_future().wait();
  Abandon();
  EXPECT_TRUE(!Runtime().initialized());
  EXPECT_EQ(Runtime().abandoned() > 0, true);
  go_on.set_value();
  EXPECT_TRUE(now->Wait(call).ok());
}

void InADone(Generation* now) {
  const size_t after = now->Prepare("after it", 8);
  const size_t call = now->Call("d", 8, true, [&] {
    Abandon();
    now->Start(after);
  });
  EXPECT_TRUE(now->Wait(call).ok());
}

void Twice(Generation* now) {
  now->Call("x", 8, false);
  Abandon();
  Abandon();
}

void FromTwoThreads(Generation* now) {
  now->Call("x", 1 << 14, true);
  std::thread other(Abandon);
  Abandon();
  other.join();
}

// Of an old number: a thread that comes too late must not end the generation that has begun.
void ByItsNumber(Generation* now) {
  EXPECT_TRUE(now->Wait(now->Call("x", 8, true)).ok());
  Runtime().Abandon("too late", now->number - 1);
  EXPECT_TRUE(Runtime().initialized());
  Runtime().Abandon("for test", now->number);
}

void WhileAShutdownRuns(Generation* now) {
  now->Call("x", 8, false);
  std::thread leaving([] { Runtime().Shutdown(); });
  Abandon();
  now->AbandonPeers();  // the connections are closed for good when they are on both sides
  leaving.join();
}

using Phase = void (*)(Generation*);
const Phase kPhases[] = {BeforeAnyCall,
                         WhileACallWaitsForOthers,
                         RightAfterTheCalls,
                         InMidCollective,
                         BetweenCompletions,
                         WhileADoneRuns,
                         InADone,
                         Twice,
                         FromTwoThreads,
                         ByItsNumber,
                         WhileAShutdownRuns};
constexpr size_t kPhaseCount = sizeof(kPhases) / sizeof(kPhases[0]);

void RunGenerations(int count, uint32_t seed) {
  std::mt19937 random(seed);
  // Until its successor runs: what is left of it has all the time to do harm.
  std::unique_ptr<Generation> before;
  for (int i = 0; i < count; ++i) {
    const int size = 2 + static_cast<int>(random() % 3);
    auto now =
        std::make_unique<Generation>(size, static_cast<Rank>(random() % size), random() | 1u);
    const bool during_init = random() % 8 == 0;
    std::thread early;
    if (during_init) early = std::thread(Abandon);  // there is nothing yet, or it comes in time
    EXPECT_EQ(Runtime().Init(std::move(now->options)).ToString(), OkStatus().ToString());
    now->number = Runtime().generation().number;
    if (during_init) early.join();
    if (!during_init) {
      EXPECT_TRUE(now->Wait(now->Call("first", 64, true)).ok());
    }
    if (Runtime().initialized()) kPhases[random() % kPhaseCount](now.get());
    Abandon();
    const GenerationState state = Runtime().generation();
    EXPECT_EQ(state.number, now->number);
    EXPECT_TRUE(state.phase == GenerationState::Phase::kDown);
    now->CheckMine();
    if (before != nullptr) before->CheckTheirs();
    before = std::move(now);
  }
  before.reset();
  WaitUntilAllAreGone();
}

TEST(AThousandGenerationsLeaveNothing) {
  RunGenerations(20, 1);  // what is made once
  const int fds = EntriesOf("/proc/self/fd");
  const int threads = EntriesOf("/proc/self/task");
  const struct mallinfo2 memory = mallinfo2();
  RunGenerations(kGenerations, 2);
  WaitUntil([&] { return EntriesOf("/proc/self/task") <= threads; });
  EXPECT_EQ(EntriesOf("/proc/self/fd"), fds);
  const auto grown =
      static_cast<int64_t>(mallinfo2().uordblks) - static_cast<int64_t>(memory.uordblks);
  EXPECT_TRUE(grown < 200 * kGenerations);  // bytes: a generation of some ranks needs far more
}

TEST(AGenerationTellsHowItStandsAndHowItEnded) {
  auto now = std::make_unique<Generation>(2, 0, 5);
  ASSERT_TRUE(Runtime().Init(std::move(now->options)).ok());
  const uint64_t number = Runtime().generation().number;
  EXPECT_TRUE(Runtime().generation().phase == GenerationState::Phase::kUp);
  now->number = number;
  now->Call("never", 8, false);
  now->AbandonPeers();  // which vanish
  WaitUntil([] { return Runtime().generation().phase == GenerationState::Phase::kBroken; });
  for (bool over : {false, true}) {
    if (over) Abandon();
    const GenerationState state = Runtime().generation();
    EXPECT_TRUE(state.lost == std::vector<Rank>{1} && state.departed.empty());
    EXPECT_CONTAINS(state.error.message(), "rank 1 was lost");
  }
  EXPECT_CONTAINS(now->Wait(0).message(), "rank 1 was lost");
  auto late = Allreduce("late", {1}, 1.0f);
  EnqueueIn(0, late->request, late->MakeLocalCall());
  const Status status = late->Wait();
  EXPECT_TRUE(status.code() == StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(status.message(), "generation " + std::to_string(number) + " is over on rank 0");
  EXPECT_CONTAINS(status.message(), "rank 1 was lost");
  InitOptions old;
  old.generation = number;
  const Status refused = Runtime().Init(std::move(old));
  EXPECT_TRUE(refused.code() == StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(refused.message(), "numbers have to ascend");
  InitOptions next;
  next.generation = number + 5;
  ASSERT_TRUE(Runtime().Init(std::move(next)).ok());
  EXPECT_EQ(Runtime().generation().number, number + 5);
  EXPECT_TRUE(Runtime().generation().error.ok());
  Runtime().Shutdown();
}

// A step of TensorFlow that began in one generation takes no part in the next one.
TEST(ACallOfAnOldGenerationIsRefused) {
  const auto outcome_in = [](uint64_t generation) {
    auto call = Allreduce("x", {1}, 1.0f);
    EnqueueIn(generation, call->request, call->MakeLocalCall());
    return call->Wait();
  };
  ASSERT_TRUE(Runtime().Init(InitOptions()).ok());
  const std::shared_ptr<RankRuntime> old = *Runtime().Current();
  EXPECT_EQ(old->generation(), Runtime().generation().number);
  EXPECT_TRUE(outcome_in(old->generation()).ok());
  Abandon();
  EXPECT_TRUE(outcome_in(0).code() == StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Runtime().Init(InitOptions()).ok());
  const std::shared_ptr<RankRuntime> present = *Runtime().Current();
  const Status refused = outcome_in(old->generation());
  EXPECT_TRUE(refused.code() == StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(refused.message(), "generation " + std::to_string(old->generation()) +
                                         " is over, and generation " +
                                         std::to_string(present->generation()) + " has begun");
  auto late = Allreduce("x", {1}, 1.0f);  // what holds the old runtime learns it there
  late->Start(old.get());
  EXPECT_TRUE(late->Wait().code() == StatusCode::kFailedPrecondition);
  EXPECT_TRUE(outcome_in(0).ok());
  EXPECT_TRUE(outcome_in(present->generation()).ok());
  Runtime().Shutdown();
}

TEST(ShutdownWaitsForWhatWasAbandoned) {
  ASSERT_TRUE(Runtime().Init(InitOptions()).ok());
  std::promise<void> runs;
  std::atomic<bool> returned{false};
  auto call = Allreduce("x", {1}, 1.0f);
  LocalCall local = call->MakeLocalCall();
  local.done = [&](const Status&) {
    runs.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    returned = true;
  };
  EnqueueIn(0, call->request, std::move(local));
  runs.get_future().wait();
  Abandon();
  EXPECT_EQ(Runtime().abandoned(), 1);
  Runtime().Shutdown();
  EXPECT_TRUE(returned);
  WaitUntilAllAreGone();
}

}  // namespace
}  // namespace tfring::generations_test
