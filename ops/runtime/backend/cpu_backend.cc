#include "ops/runtime/backend/cpu_backend.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "ops/runtime/backend/algorithms/allreduce_choice.h"
#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/backend/stall_text.h"
#include "ops/runtime/base/check.h"
#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

constexpr Duration kClosePatience = 2 * kSecond;
// What a thread that submits runs itself.
constexpr int64_t kMaxCallerBytes = 64 << 10;

bool CallerMayRun(const Collective& collective) {
  return std::max(InputBytes(collective.buffers), OutputBytes(collective.buffers)) <=
         kMaxCallerBytes;
}

std::vector<int> NumberSeveralHosts(const std::vector<std::string>& names) {
  const std::vector<int> numbers = NumberHosts(names);
  const bool several =
      std::any_of(numbers.begin(), numbers.end(), [](int host) { return host != 0; });
  return several ? numbers : std::vector<int>();
}

}  // namespace

CpuBackend::CpuBackend(Rank self, const Config& config, std::unique_ptr<DataTransport> transport,
                       CompletionSink sink, std::vector<std::string> hosts, ThreadPool* pool)
    : self_(self),
      config_(config),
      transport_(std::move(transport)),
      hosts_(std::move(hosts)),
      host_numbers_(NumberSeveralHosts(hosts_)),
      runner_(transport_.get(), &poison_),
      queue_(std::make_unique<CollectiveQueue>(
          CollectiveQueue::Hooks{[this](const Collective& collective, TimePoint until) {
                                   return Run(collective, until);
                                 },
                                 [this] { transport_->Interrupt(); }},
          std::move(sink), &poison_, pool)) {
  if (self == 0 && LogEnabled(LogLevel::kDebug)) {
    for (const std::string& line : AllreducePrices(hosts_, config)) Log(LogLevel::kDebug, line);
  }
  const ProgressWatch watch(config.stall_warning, config.stall_shutdown);
  const auto on_quiet = [this](ProgressWatch::Verdict verdict, Duration quiet) {
    return OnQuiet(verdict, quiet);
  };
  runner_.Watch(watch, on_quiet);
  HostMemory* memory = config.arena ? transport_->host_memory() : nullptr;
  if (memory != nullptr) {
    arena_.emplace(memory, self, &poison_);
    arena_->Watch(watch, on_quiet);
  }
}

int64_t CpuBackend::progress() const { return runner_.moves() + (arena_ ? arena_->moves() : 0); }

int64_t CpuBackend::bytes_sent() const {
  return transport_->bytes_sent() + (arena_ ? arena_->bytes_sent() : 0);
}

int64_t CpuBackend::memory() const { return transport_->memory() + scratch_; }

int64_t CpuBackend::wakeups() const {
  return queue_->wakeups() + runner_.wakeups() + (arena_ ? arena_->wakeups() : 0);
}

CpuBackend::~CpuBackend() {
  queue_.reset();
  transport_->Close(MonotonicNow() + (peer_lost_ ? 0 : kClosePatience));
}

void CpuBackend::Abort(Status why) {
  if (why.code() == StatusCode::kUnavailable) peer_lost_ = true;
  queue_->Abort(std::move(why));
}

HostLayout CpuBackend::LayoutOf(const std::vector<Rank>& members) const {
  if (host_numbers_.empty()) return {};
  std::vector<int> host_of;
  for (Rank member : members) host_of.push_back(host_numbers_[static_cast<size_t>(member)]);
  return HostLayout(host_of);
}

// What is done when nothing has moved for `quiet`.
Status CpuBackend::OnQuiet(ProgressWatch::Verdict verdict, Duration quiet) {
  const std::vector<ScheduleRunner::Wait> waits = in_arena_ ? arena_->Waits() : runner_.Waits();
  const std::string text = StallText(*running_, self_, hosts_, waits, quiet);
  if (verdict == ProgressWatch::Verdict::kWarn) {
    Log(LogLevel::kWarning, text);
    return OkStatus();
  }
  return DeadlineExceeded(text + ". The limit is " + SecondsText(config_.stall_shutdown) +
                          " (TFRING_STALL_SHUTDOWN_TIME_SECONDS)");
}

std::optional<Completion> CpuBackend::Run(const Collective& collective, TimePoint until) {
  Completion completion;
  try {
    Result<bool> ended = Execute(collective, until, &completion);
    if (ended.ok() && !*ended) return std::nullopt;
    completion.status = ended.status();
  } catch (const std::exception& error) {
    completion.status = Internal("rank " + std::to_string(self_) + " has no memory to run " +
                                 CollectiveKindName(collective.kind) + " number " +
                                 std::to_string(collective.sequence) + " (" + error.what() +
                                 "); use smaller tensors or buckets");
  }
  begun_ = false;
  completion.suspect = in_arena_ ? arena_->suspect() : runner_.suspect();
  completion.bad_values = std::exchange(bad_values_, {});
  if (completion.recalled) completion.bad_values.clear();  // they are looked for again
  return completion;
}

// Whether it has ended: with a limit, only what needs no other rank, or is small and in an arena,
// is begun.
Result<bool> CpuBackend::Execute(const Collective& collective, TimePoint until,
                                 Completion* completion) {
  if (!begun_) {
    const bool reaches = arena_ && arena_->Reaches(collective);
    const bool moves = reaches && ArenaCollective::Runs(collective);
    const bool alone = collective.members.size() == 1;
    if (until != kNever && !alone && !(moves && CallerMayRun(collective))) return false;
    moves_in_arena_ = moves;
    in_arena_ = moves || (reaches && collective.locked);
    Begin(collective);
  }
  if (in_arena_) {
    Result<bool> ended = arena_->Run(until);
    if (!ended.ok()) return ended;
    begun_ = !*ended;
    if (begun_) return false;
    completion->recalled = arena_->recalled();
    completion->entered = arena_->entered();
    if (completion->recalled || moves_in_arena_) return true;
    in_arena_ = false;
  } else if (collective.locked) {
    TFRING_RETURN_IF_ERROR(CheckEntry(collective, &completion->recalled));
    if (completion->recalled) return true;
  }
  TFRING_RETURN_IF_ERROR(RunSchedule(collective));
  return true;
}

void CpuBackend::Begin(const Collective& collective) {
  const Rank rank = collective.members[collective.self];
  TFRING_CHECK(rank == self_) << "rank " << self_ << " was given the collective of rank " << rank;
  running_ = &collective;
  // Before an output in the same place is written.
  if (config_.check_values != ValueAction::kIgnore) bad_values_ = FindBadValues(collective);
  if (!in_arena_) return;
  arena_->Start(collective, moves_in_arena_ ? ResolveReduction(collective) : Reduction());
}

// Finds out whether the batch of a lock is recalled because not all members enter it: a sum of what
// each says, as a collective of its own in front of the data.
Status CpuBackend::CheckEntry(const Collective& collective, bool* recalled) {
  const int32_t own = collective.is_void ? 1 : 0;
  int32_t voids = 0;
  Collective proof;
  proof.sequence = collective.sequence;
  proof.what = "the entry to " + collective.what;
  proof.kind = CollectiveKind::kAllreduce;
  proof.dtype = DataType::kInt32;
  proof.members = collective.members;
  proof.self = collective.self;
  proof.buffers = {{&own, &voids, sizeof(own), sizeof(voids)}};
  TFRING_RETURN_IF_ERROR(RunSchedule(proof));
  *recalled = voids > 0;
  return OkStatus();
}

Status CpuBackend::RunSchedule(const Collective& collective) {
  const Schedule schedule = SelectSchedule(collective, config_, LayoutOf(collective.members));
  TFRING_LOG(kDebug) << collective.what << ", " << InputBytes(collective.buffers)
                     << " bytes: " << schedule.algorithm;
  for (const Step& step : schedule.steps) {
    const Rank peer = IsRemote(step) ? collective.members[step.peer] : kNoRank;
    if (peer != kNoRank && !transport_->Connected(peer)) {
      return Internal("rank " + std::to_string(self_) + " is not connected to rank " +
                      std::to_string(peer) + ", which " + schedule.algorithm + " needs");
    }
    if (step.kind == StepKind::kSend && collective.traffic != nullptr) {
      collective.traffic->SentTo(peer, StepBytes(step));
    }
  }
  executor_.Prepare(collective, schedule, ResolveReduction(collective));
  scratch_ = executor_.memory();
  running_ = &collective;
  runner_.Start(schedule, collective.sequence, collective.members, &executor_, collective.marks);
  return runner_.Run();
}

}  // namespace tfring
