#include "ops/runtime/process/control_loop.h"

#include <optional>
#include <string>
#include <utility>

#include "ops/runtime/base/log.h"
#include "ops/runtime/process/collective_builder.h"
#include "ops/runtime/transport/socket_util.h"

namespace tfring {
namespace {

// Peers may still read what we sent last.
constexpr Duration kCloseLimit = 2 * kSecond;

}  // namespace

ControlLoop::ControlLoop(EngineOptions options, std::unique_ptr<ControlTransport> transport,
                         CallTable* table, MemberTable* members, CompletionThread* completions)
    : rank_(options.rank),
      engine_(std::move(options)),
      table_(table),
      members_(members),
      completions_(completions),
      transport_(std::move(transport)) {}

ControlLoop::~ControlLoop() = default;

CompletionSink ControlLoop::Sink() {
  return [this](Completion completion) { OnCompletion(std::move(completion)); };
}

void ControlLoop::OnCompletion(Completion completion) {
  const uint64_t sequence = completion.sequence;
  const bool ok = completion.status.ok();
  bool leaving = false;
  {
    // Before any `done` can run: a name that is submitted again must come after its completion.
    std::lock_guard<std::mutex> lock(inbox_mutex_);
    inbox_.completions.push_back(std::move(completion));
    leaving = leaving_;
  }
  if (ok) {
    completions_->Push(table_->TakePlan(sequence));
  } else {
    table_->ForgetPlan(sequence);
  }
  // Only the sequencer has to act on a success, since it may send what became ready meanwhile, and
  // whoever waits for the last plan to leave. The others learn of it when they are awake next.
  if (!ok || leaving || rank_ == 0) WakeIfAsleep();
}

void ControlLoop::RequestShutdown() {
  {
    std::lock_guard<std::mutex> lock(inbox_mutex_);
    inbox_.shutdown = true;
    leaving_ = true;
  }
  WakeIfAsleep();
}

void ControlLoop::WakeIfAsleep() {
  if (asleep_.exchange(false)) transport_->Wake();
}

bool ControlLoop::InboxEmpty() const {
  std::lock_guard<std::mutex> lock(inbox_mutex_);
  return inbox_.completions.empty() && !inbox_.shutdown;
}

void ControlLoop::Sleep(std::vector<ControlEvent>* events) {
  asleep_.store(true);
  const bool nothing = !table_->HasSubmissions() && InboxEmpty();
  if (!nothing) asleep_.store(false);
  transport_->Wait(nothing ? engine_.next_deadline() : 0, events);
  asleep_.store(false);
}

EngineEvents ControlLoop::Gather(std::vector<ControlEvent> control) {
  EngineEvents events;
  events.control = std::move(control);
  // In this order: a name may be submitted again once its completion is in the inbox.
  table_->Drain(&events.submissions);
  std::lock_guard<std::mutex> lock(inbox_mutex_);
  events.completions.swap(inbox_.completions);
  events.shutdown = std::exchange(inbox_.shutdown, false);
  return events;
}

void ControlLoop::Run() {
  bool finished = false;
  std::vector<ControlEvent> control;
  while (!finished) {
    EngineEffects effects = engine_.Step(MonotonicNow(), Gather(std::exchange(control, {})));
    finished = effects.finished;
    Apply(std::move(effects));
    if (!finished) Sleep(&control);
  }
  Leave();
}

void ControlLoop::Apply(EngineEffects effects) {
  for (auto& [to, frame] : effects.frames) transport_->Send(to, std::move(frame));
  for (const PlanRun& run : effects.runs) StartPlan(run);
  if (effects.abort) backend_->Abort(std::move(*effects.abort));
  std::vector<FinishedCall> finished;
  for (auto& [id, status] : effects.results) {
    std::optional<FinishedCall> call = table_->Take(id, std::move(status));
    if (call) finished.push_back(std::move(*call));
  }
  completions_->Push(std::move(finished));
  for (const std::string& warning : effects.warnings) TFRING_LOG(kWarning) << warning;
}

void ControlLoop::StartPlan(const PlanRun& run) {
  const std::vector<RunningCall*> calls = table_->Begin(run.plan.sequence, run.entries);
  if (!MovesData(run.plan.kind)) {
    Count({}, calls.size());
    return OnCompletion({run.plan.sequence, RunHere(run.plan, calls), kNoRank});
  }
  Result<Collective> collective = BuildCollective(run, rank_, calls);
  if (!collective.ok()) {
    // The peers run this plan: our bytes of the next one must not be taken for those of this one.
    backend_->Abort(collective.status());
    return OnCompletion(Completion{run.plan.sequence, collective.status(), kNoRank});
  }
  Count(collective->buffers, calls.size());
  backend_->Submit(std::move(*collective));
}

// What needs no backend: that the plan came is all there is to it.
Status ControlLoop::RunHere(const Plan& plan, const std::vector<RunningCall*>& calls) {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const std::vector<int64_t>& values = plan.items[i].negotiated_values;
    if (values.empty() || i >= calls.size()) {
      return Internal("plan " + std::to_string(plan.sequence) + " (" +
                      CollectiveKindName(plan.kind) + ") does not fit the calls of rank " +
                      std::to_string(rank_));
    }
    const auto id = static_cast<ProcessSetId>(values[0]);
    if (plan.kind == CollectiveKind::kAddProcessSet) {
      TFRING_RETURN_IF_ERROR(
          members_->Add(id, std::vector<Rank>(values.begin() + 1, values.end())));
    }
    if (plan.kind == CollectiveKind::kRemoveProcessSet) members_->Remove(id);
    if (calls[i]->entry.announce) calls[i]->entry.announce({values[0]});
  }
  return OkStatus();
}

void ControlLoop::Count(const std::vector<TensorBuffer>& buffers, size_t calls) {
  std::lock_guard<std::mutex> lock(counts_mutex_);
  ++counts_.plans;
  counts_.cache_hits = engine_.cache_hits();
  counts_.collectives += static_cast<int64_t>(calls);
  counts_.tensors += static_cast<int64_t>(buffers.size());
  for (const TensorBuffer& buffer : buffers) {
    if (buffer.input == buffer.output && buffer.input != nullptr) ++counts_.forwarded;
  }
}

ControlLoop::Counts ControlLoop::counts() const {
  std::lock_guard<std::mutex> lock(counts_mutex_);
  Counts counts = counts_;
  if (backend_ != nullptr) {
    counts.data_wakeups = backend_->wakeups();
    counts.bytes_sent = backend_->bytes_sent();
  }
  counts.control_wakeups = transport_->wakeups();
  return counts;
}

void ControlLoop::DropBackend(const Status& why) {
  backend_->Abort(why);
  std::unique_ptr<CollectiveBackend> backend;
  {
    std::lock_guard<std::mutex> lock(counts_mutex_);
    counts_.data_wakeups = backend_->wakeups();
    counts_.bytes_sent = backend_->bytes_sent();
    backend = std::move(backend_);
  }
  backend.reset();  // joins its threads and closes the data streams
}

void ControlLoop::Leave() {
  const TimePoint deadline = MonotonicNow() + kCloseLimit;
  const Status why = Cancelled("rank " + std::to_string(rank_) + " has shut down");
  DropBackend(why);
  transport_->Close(deadline);
  completions_->Push(table_->TakeAll(why));
}

}  // namespace tfring
