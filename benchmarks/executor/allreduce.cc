// The executor alone: how long a collective of float32 takes between processes of one host, with
// nothing of TensorFlow, Python, negotiation or other threads around it.
//
//   tfring_executor_benchmark RANKS BYTES ROUNDS [SKEW_US [PIECE_BYTES]] [kind=allreduce]
//       [hosts=0,0,1,1] [socket=A:B:FD:FD ...] [SETTING=VALUE ...]
//
// BYTES is the larger of a rank's input and output. `kind` is one that gives all ranks something:
// allreduce, allgather, broadcast, barrier, reducescatter or alltoall.
//
// With `hosts`, the host of each rank, ranks of different hosts use the connected sockets that the
// program has inherited: for each pair of ranks the descriptors of both ends. SETTING is one of the
// runtime's, without TFRING_, and VALUE a number, nanoseconds, the index of a choice, or a path.
//
// Prints a line "allreduce_ns copy_ns" for each round: the time from the last rank's beginning to
// the last one's end. The two take turns; "copy" is every rank copying its input to its output at
// the same time. With a skew, ranks compute for a random time of up to SKEW_US before they begin.
// Every rank keeps to one core, as long as there are enough.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ops/runtime/backend/algorithms/select.h"
#include "ops/runtime/backend/arena/arena_runner.h"
#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/backend/schedule/buffer_map.h"
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
  CollectiveKind kind = CollectiveKind::kAllreduce;
  int ranks = 2;
  int64_t bytes = 4;
  int rounds = 100;
  Duration skew = 0;
  Config config;
  std::vector<int> hosts;                 // by rank; empty: one host
  std::vector<std::vector<int>> sockets;  // those that are inherited; else -1
};

bool SameHost(const Options& options, int a, int b) {
  return options.hosts.empty() || options.hosts[a] == options.hosts[b];
}

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

std::unique_ptr<DataTransport> Connect(int self, const Options& options,
                                       const std::vector<std::vector<int>>& sockets) {
  std::map<Rank, UniqueFd> own;
  std::vector<ShmPeer> peers;
  for (size_t peer = 0; peer < sockets.size(); ++peer) {
    if (static_cast<int>(peer) == self) continue;
    const int fd = sockets[static_cast<size_t>(self)][peer];
    own.emplace(static_cast<Rank>(peer), UniqueFd(fd));
    if (SameHost(options, self, static_cast<int>(peer))) {
      peers.push_back({static_cast<Rank>(peer), fd});
    }
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
        output_(input_.size()),
        config_(options.config),
        layout_(options.hosts) {
    collective_.kind = options.kind;
    collective_.dtype = DataType::kFloat32;
    collective_.self = self;
    for (int rank = 0; rank < options.ranks; ++rank) collective_.members.push_back(rank);
    FillBuffers(options.bytes);
    if (options.config.arena && transport->host_memory() != nullptr) {
      arena_.emplace(transport->host_memory(), self, &poison_);
    }
  }

  Status Run() {
    ++collective_.sequence;
    if (arena_ && arena_->Reaches(collective_) && ArenaCollective::Runs(collective_)) {
      arena_->Start(collective_, ResolveReduction(collective_));
      return arena_->Run(kNever).status();
    }
    const Schedule schedule = SelectSchedule(collective_, config_, layout_);
    executor_.Prepare(collective_, schedule, ResolveReduction(collective_));
    runner_.Start(schedule, collective_.sequence, collective_.members, &executor_);
    return runner_.Run();
  }

  void Copy() { std::memcpy(output_.data(), input_.data(), input_.size() * sizeof(float)); }

  bool Right() const {
    const size_t ranks = collective_.members.size();
    const auto bytes = static_cast<size_t>(OutputBytes(collective_.buffers));
    const size_t elements = bytes / sizeof(float);
    for (size_t i = 0; i < elements; ++i) {
      const bool whole = collective_.kind == CollectiveKind::kBroadcast;
      const auto expected = Traits(collective_.kind).reduces ? ranks * (ranks + 1) / 2
                            : whole                          ? 1
                                                             : i / (elements / ranks) + 1;
      if (output_[i] != static_cast<float>(expected)) return false;
    }
    return true;
  }

 private:
  // Blocks of one size. The root of a broadcast is rank 0.
  void FillBuffers(int64_t bytes) {
    const auto ranks = static_cast<int64_t>(collective_.members.size());
    const int64_t block = bytes / ranks / 4 * 4;
    int64_t in = bytes;
    int64_t out = bytes;
    if (Sides sides = SidesOf(collective_); sides.input.own || sides.input.blocks) {
      in = sides.input.own ? block : block * ranks;
      out = sides.output.own ? block : block * ranks;
      collective_.block_bytes = {std::vector<int64_t>(static_cast<size_t>(ranks), block)};
      collective_.send_bytes = collective_.block_bytes;
    }
    if (collective_.kind == CollectiveKind::kBarrier) return;
    collective_.buffers.push_back({input_.data(), output_.data(), in, out});
  }

  std::atomic<bool> poison_{false};
  ScheduleRunner runner_;
  StepExecutor executor_;
  std::optional<ArenaRunner> arena_;
  Collective collective_;
  std::vector<float> input_;
  std::vector<float> output_;
  const Config config_;
  const HostLayout layout_;
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
  std::unique_ptr<DataTransport> transport = Connect(self, options, sockets);
  if (transport == nullptr) return 1;
  Worker worker(self, options, transport.get());
  std::mt19937 random(static_cast<uint32_t>(self));
  const int warmup = 5;
  for (int round = -warmup; round < options.rounds; ++round) {
    const Duration delay = options.skew > 0 ? random() % options.skew : 0;
    Status status;
    const Duration reduced =
        Timed(self, options, shared, delay, [&worker, &status] { status = worker.Run(); });
    if (!status.ok() || (round == -warmup && !worker.Right())) {
      std::fprintf(stderr, "rank %d: %s\n", self,
                   status.ok() ? "the result is wrong" : status.message().c_str());
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
      if (!SameHost(options, static_cast<int>(a), static_cast<int>(b))) {
        sockets[a][b] = options.sockets[a][b];
        sockets[b][a] = options.sockets[b][a];
        continue;
      }
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
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(RunRank(rank, options, sockets, shared));
    }
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

// Barrier if there is none of that name.
CollectiveKind KindOf(const std::string& name) {
  int kind = 0;
  while (kind < kNumCollectiveKinds &&
         CollectiveKindName(static_cast<CollectiveKind>(kind)) != name) {
    ++kind;
  }
  return kind < kNumCollectiveKinds ? static_cast<CollectiveKind>(kind) : CollectiveKind::kBarrier;
}

// Reads "hosts=...", "socket=..." and settings; false if that makes no sense.
bool ReadNamed(const std::vector<std::string>& arguments, Options* options) {
  const size_t ranks = static_cast<size_t>(options->ranks);
  options->sockets.assign(ranks, std::vector<int>(ranks, -1));
  SettingValues settings;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) return false;
    const std::string name = argument.substr(0, equals);
    std::istringstream value(argument.substr(equals + 1));
    std::string part;
    if (name == "hosts") {
      while (std::getline(value, part, ',')) options->hosts.push_back(std::atoi(part.c_str()));
    } else if (name == "kind") {
      options->kind = KindOf(value.str());
    } else if (name == "socket") {
      std::vector<size_t> numbers;
      while (std::getline(value, part, ':')) numbers.push_back(std::stoul(part));
      if (numbers.size() != 4 || numbers[0] >= ranks || numbers[1] >= ranks) return false;
      options->sockets[numbers[0]][numbers[1]] = static_cast<int>(numbers[2]);
      options->sockets[numbers[1]][numbers[0]] = static_cast<int>(numbers[3]);
    } else {
      char* end = nullptr;
      const std::string text = value.str();
      const int64_t number = std::strtoll(text.c_str(), &end, 10);
      settings[name] = *end == '\0' ? SettingValue(number) : SettingValue(text);
    }
  }
  Result<Config> config = MakeConfig(settings);
  if (!config.ok()) std::fprintf(stderr, "%s\n", config.status().message().c_str());
  if (config.ok()) options->config = *config;
  return config.ok() && (options->hosts.empty() || options->hosts.size() == ranks);
}

// Numbers in their order, then what has a name.
bool ReadArguments(int argc, char** argv, Options* options) {
  std::vector<int64_t> numbers;
  int next = 1;
  for (; next < argc && std::string(argv[next]).find('=') == std::string::npos; ++next) {
    numbers.push_back(std::atoll(argv[next]));
  }
  if (numbers.size() > 0) options->ranks = static_cast<int>(numbers[0]);
  if (numbers.size() > 1) options->bytes = numbers[1];
  if (numbers.size() > 2) options->rounds = static_cast<int>(numbers[2]);
  if (numbers.size() > 3) options->skew = numbers[3] * kMillisecond / 1000;
  std::vector<std::string> named(argv + next, argv + argc);
  if (numbers.size() > 4) named.push_back("PIECE_BYTES=" + std::to_string(numbers[4]));
  const bool sensible = options->ranks >= 2 && options->ranks <= kMaxRanks && options->bytes >= 4;
  return sensible && ReadNamed(named, options);
}

}  // namespace
}  // namespace tfring

int main(int argc, char** argv) {
  tfring::Options options;
  if (!tfring::ReadArguments(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: %s RANKS BYTES ROUNDS [SKEW_US [PIECE_BYTES]] [kind=KIND] "
                 "[hosts=H,H...] [socket=A:B:FD:FD ...] [SETTING=VALUE ...]\n",
                 argv[0]);
    return 2;
  }
  return tfring::Main(options);
}
