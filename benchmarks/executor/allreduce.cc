// The executor alone: how long a float32 allreduce takes between processes of one host, with
// nothing of TensorFlow, Python, negotiation or other threads around it.
//
//   tfring_executor_benchmark RANKS BYTES ROUNDS [SKEW_US [PIECE_BYTES [ARENA]]]
//
// Prints a line "allreduce_ns copy_ns" for each round: the time from the last rank's beginning to
// the last one's end. The two take turns; "copy" is every rank copying its input to its output at
// the same time. With a skew, ranks compute for a random time of up to SKEW_US before they begin.
// ARENA is 1, as the runtime has it, or 0: along streams. Every rank keeps to one core, as long as
// there are enough.
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "ops/runtime/backend/algorithms/select.h"
#include "ops/runtime/backend/arena/arena_runner.h"
#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/backend/schedule/runner.h"
#include "ops/runtime/backend/schedule/step_executor.h"
#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/transport/shm_data.h"
#include "ops/runtime/transport/tcp_data.h"

namespace tfring {
namespace {

constexpr int kMaxRanks = 64;

// What the processes share, besides the data: a barrier, and the times of a round.
struct Shared {
  std::atomic<int> arrived{0};
  std::atomic<int> round{0};
  std::atomic<bool> failed{false};
  TimePoint begin[kMaxRanks] = {};
  TimePoint end[kMaxRanks] = {};
};

struct Options {
  int ranks = 2;
  int64_t bytes = 4;
  int rounds = 100;
  Duration skew = 0;
  int64_t piece_bytes = 0;  // 0: as the runtime has it
  bool arena = true;
};

void Barrier(Shared* shared, int ranks) {
  const int round = shared->round.load();
  if (shared->arrived.fetch_add(1) + 1 == ranks) {
    shared->arrived.store(0);
    shared->round.store(round + 1);
    return;
  }
  for (int spins = 0; shared->round.load() == round && !shared->failed; ++spins) {
    if (spins > 2000) sched_yield();
  }
}

std::unique_ptr<DataTransport> Connect(int self, const std::vector<std::vector<int>>& sockets) {
  std::map<Rank, UniqueFd> own;
  std::vector<ShmPeer> peers;
  for (size_t peer = 0; peer < sockets.size(); ++peer) {
    if (static_cast<int>(peer) == self) continue;
    const int fd = sockets[static_cast<size_t>(self)][peer];
    own.emplace(static_cast<Rank>(peer), UniqueFd(fd));
    peers.push_back({static_cast<Rank>(peer), fd});
  }
  auto base = TcpDataTransport::Create(std::move(own));
  if (!base.ok()) return nullptr;
  auto made = ShmDataTransport::Connect(ShmUse::kWherePossible, peers, std::move(*base),
                                        MonotonicNow() + 20 * kSecond, self);
  return made.ok() ? std::move(*made) : nullptr;
}

// One rank: runs the collective as CpuBackend does.
class Worker {
 public:
  Worker(int self, const Options& options, DataTransport* transport)
      : runner_(transport, &poison_),
        input_(static_cast<size_t>(options.bytes / 4), static_cast<float>(self + 1)),
        output_(input_.size()) {
    config_.piece_bytes = options.piece_bytes > 0 ? options.piece_bytes : config_.piece_bytes;
    collective_.kind = CollectiveKind::kAllreduce;
    collective_.dtype = DataType::kFloat32;
    collective_.self = self;
    for (int rank = 0; rank < options.ranks; ++rank) collective_.members.push_back(rank);
    collective_.buffers.push_back({input_.data(), output_.data(), options.bytes, options.bytes});
    if (options.arena && transport->host_memory() != nullptr) {
      arena_.emplace(transport->host_memory(), self, &poison_);
    }
  }

  Status Allreduce() {
    ++collective_.sequence;
    if (arena_) {
      bool recalled = false;
      return arena_->Run(collective_, ResolveReduction(collective_), false, &recalled);
    }
    Result<Schedule> schedule = SelectSchedule(collective_, config_, Connectivity::kFull);
    if (!schedule.ok()) return schedule.status();
    executor_.Prepare(collective_, *schedule, ResolveReduction(collective_));
    runner_.Start(*schedule, collective_.sequence, collective_.members, &executor_);
    return runner_.Run();
  }

  void Copy() { std::memcpy(output_.data(), input_.data(), input_.size() * sizeof(float)); }

  bool Right() const {
    const auto ranks = static_cast<int>(collective_.members.size());
    const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
    for (float value : output_) {
      if (value != sum) return false;
    }
    return true;
  }

 private:
  std::atomic<bool> poison_{false};
  ScheduleRunner runner_;
  StepExecutor executor_;
  std::optional<ArenaRunner> arena_;
  Config config_;
  Collective collective_;
  std::vector<float> input_;
  std::vector<float> output_;
};

void KeepToOneCore(int self, int ranks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (ranks > cores) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(self, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// Runs `what` on all ranks at the same time; the result is how long it took after the last rank has
// begun.
template <typename What>
Duration Timed(int self, const Options& options, Shared* shared, Duration delay, What what) {
  Barrier(shared, options.ranks);
  const TimePoint start = MonotonicNow();
  while (MonotonicNow() < start + delay) {
  }
  shared->begin[self] = MonotonicNow();
  what();
  shared->end[self] = MonotonicNow();
  Barrier(shared, options.ranks);
  return *std::max_element(shared->end, shared->end + options.ranks) -
         *std::max_element(shared->begin, shared->begin + options.ranks);
}

int RunRank(int self, const Options& options, const std::vector<std::vector<int>>& sockets,
            Shared* shared) {
  KeepToOneCore(self, options.ranks);
  std::unique_ptr<DataTransport> transport = Connect(self, sockets);
  if (transport == nullptr) return 1;
  Worker worker(self, options, transport.get());
  std::mt19937 random(static_cast<uint32_t>(self));
  const int warmup = 5;
  for (int round = -warmup; round < options.rounds; ++round) {
    const Duration delay = options.skew > 0 ? random() % options.skew : 0;
    Status status;
    const Duration reduced =
        Timed(self, options, shared, delay, [&worker, &status] { status = worker.Allreduce(); });
    if (!status.ok() || (round == -warmup && !worker.Right())) {
      std::fprintf(stderr, "rank %d: %s\n", self,
                   status.ok() ? "the sum is wrong" : status.message().c_str());
      shared->failed = true;
      return 1;
    }
    const Duration copied = Timed(self, options, shared, 0, [&worker] { worker.Copy(); });
    if (shared->failed) return 1;
    if (self != 0 || round < 0) continue;
    std::printf("%lld %lld\n", static_cast<long long>(reduced), static_cast<long long>(copied));
  }
  transport->Close(MonotonicNow() + kSecond);
  return 0;
}

int Main(const Options& options) {
  std::vector<std::vector<int>> sockets(static_cast<size_t>(options.ranks),
                                        std::vector<int>(static_cast<size_t>(options.ranks), -1));
  for (size_t a = 0; a < sockets.size(); ++a) {
    for (size_t b = a + 1; b < sockets.size(); ++b) {
      int fds[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return 1;
      sockets[a][b] = fds[0];
      sockets[b][a] = fds[1];
    }
  }
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* const shared = new (memory) Shared();
  std::vector<pid_t> children;
  for (int rank = 1; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) _exit(RunRank(rank, options, sockets, shared));
    children.push_back(child);
  }
  int code = RunRank(0, options, sockets, shared);
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) code = 1;
  }
  return code;
}

}  // namespace
}  // namespace tfring

int main(int argc, char** argv) {
  tfring::Options options;
  if (argc > 1) options.ranks = std::atoi(argv[1]);
  if (argc > 2) options.bytes = std::atoll(argv[2]);
  if (argc > 3) options.rounds = std::atoi(argv[3]);
  if (argc > 4) options.skew = std::atoll(argv[4]) * tfring::kMillisecond / 1000;
  if (argc > 5) options.piece_bytes = std::atoll(argv[5]);
  if (argc > 6) options.arena = std::atoi(argv[6]) != 0;
  if (options.ranks < 2 || options.ranks > tfring::kMaxRanks || options.bytes < 4) {
    std::fprintf(stderr, "usage: %s RANKS BYTES ROUNDS [SKEW_US [PIECE_BYTES [ARENA]]]\n", argv[0]);
    return 2;
  }
  return tfring::Main(options);
}
