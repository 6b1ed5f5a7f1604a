#include "ops/runtime/process/control_loop.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/process/collective_builder.h"

namespace tfring {
namespace {

// For peers to read the last frames, and to close their side.
constexpr Duration kCloseLimit = 2 * kSecond;
constexpr Duration kAbandonedCloseLimit = kSecond / 4;
// How often the control thread looks at what waits while other threads take the steps of a lock.
constexpr Duration kLookInterval = kSecond / 10;

}  // namespace

ControlLoop::ControlLoop(EngineOptions options, std::unique_ptr<ControlTransport> transport,
                         CallTable* table, RunTable* runs, Completions* completions,
                         const ErrorNotes* notes, Recorder* recorder)
    : rank_(options.rank),
      reports_(options.rank, recorder),
      value_reports_(options.rank, options.config.check_values, recorder),
      engine_(std::move(options)),
      table_(table),
      runs_(runs),
      completions_(completions),
      notes_(notes),
      transport_(std::move(transport)),
      sets_(std::make_shared<const ProcessSets>(engine_.process_sets())),
      health_(std::make_shared<const GenerationHealth>()) {}

ControlLoop::~ControlLoop() = default;

CompletionSink ControlLoop::Sink() {
  return [this](Completion completion) { OnCompletion(std::move(completion)); };
}

void ControlLoop::OnCompletion(Completion completion) {
  const uint64_t sequence = completion.sequence;
  const bool succeeded = Succeeded(completion);
  const bool launched = completion.stage == CompletionStage::kLaunched;
  const TimePoint now = MonotonicNow();
  reports_.PlanEnded(completion, now);
  if (!completion.bad_values.empty()) ReportValues(completion);
  if (rank_ == 0 && succeeded) table_->NoteAsked(sequence, completion.entered);
  // Before any `done` can run: it may submit the same name again, and the engine has to see this
  // completion first.
  const bool leaving = inbox_.Add(std::move(completion));
  if (launched) {
    completions_->Push(table_->TakeLaunched(sequence, now));
  } else {
    completions_->Push(succeeded ? table_->TakePlan(sequence, now) : table_->ForgetPlan(sequence));
  }
  // A success needs the engine at once only where the next plan waits for the end of this one, and
  // on a rank that leaves after its last plan. All others see it at their next step.
  if (!succeeded || (leaving && !launched) || awaits_end_) WakeIfAsleep();
}

void ControlLoop::ReportValues(const Completion& completion) {
  for (const BadCall& call : table_->Locate(completion.sequence, completion.bad_values)) {
    Status failure = value_reports_.Report(call);
    if (!failure.ok()) table_->FailLocally(call.id, std::move(failure));
  }
}

void ControlLoop::RequestShutdown(const std::string& error) {
  inbox_.RequestShutdown(error);
  WakeIfAsleep();
}

void ControlLoop::Abandon(const Status& why) {
  inbox_.Abandon(why);
  WakeIfAsleep();
}

void ControlLoop::WakeIfAsleep() {
  if (asleep_.exchange(false)) transport_->Wake();
}

void ControlLoop::NotifySubmission() {
  bool wakes = false;
  while (locked_ && table_->HasSubmissions()) {
    std::unique_lock<std::mutex> lock(step_mutex_, std::try_to_lock);
    // Whoever is at a step looks at the table once more after it.
    if (!lock.owns_lock() || over_) return;
    TakeStep({});
    stepped_for_it_ = true;
    wakes = wakes || finished_ || engine_.next_deadline() < sleeps_until_;
  }
  if (wakes || !locked_) WakeIfAsleep();
}

// In a lock other threads take steps, and each step may move the engine's deadline. So after such
// steps the control thread sleeps for kLookInterval at most, and reads the deadline anew. The
// others wake it only if the deadline is now earlier than the end of its sleep, the engine has
// finished, or the lock is over.
TimePoint ControlLoop::SleepsUntil() {
  sleeps_until_ = engine_.next_deadline();
  if (std::exchange(stepped_for_it_, false) && locked_) {
    sleeps_until_ = std::min(sleeps_until_, MonotonicNow() + kLookInterval);
  }
  return sleeps_until_;
}

void ControlLoop::Sleep(std::vector<ControlEvent>* events) {
  TimePoint deadline = 0;
  {
    std::lock_guard<std::mutex> lock(step_mutex_);
    deadline = SleepsUntil();
    asleep_.store(true);
  }
  const bool nothing =
      !table_->HasSubmissions() && !runs_->HasWithdrawals() && inbox_.CanWait(awaits_end_);
  if (!nothing) asleep_.store(false);
  transport_->Wait(nothing ? deadline : 0, events);
  asleep_.store(false);
}

EngineEvents ControlLoop::Gather(std::vector<ControlEvent> control) {
  EngineEvents events;
  events.control = std::move(control);
  events.progress = backend_->progress();
  // In this order: calls that reuse a name were made after the completion came into the inbox, and
  // calls of an attempt after the withdrawal from the one before.
  table_->Drain(&events.submissions);
  runs_->Drain(&events.withdrawals);
  inbox_.Drain(&events);
  return events;
}

void ControlLoop::TakeStep(std::vector<ControlEvent> control) {
  for (const ControlEvent& event : control) {
    if (event.kind == ControlEvent::Kind::kFrame) received_.Add(event.frame);
  }
  const TimePoint now = MonotonicNow();
  EngineEffects effects = engine_.Step(now, Gather(std::move(control)));
  reports_.Step(effects, now, *backend_, engine_);
  finished_ = effects.finished;
  stays_ = effects.stays;
  awaits_end_ = effects.awaits_end;
  locked_ = engine_.lock() != 0;
  Apply(std::move(effects));
}

void ControlLoop::Run() {
  std::vector<ControlEvent> control;
  for (;;) {
    Status abandoned;
    {
      std::lock_guard<std::mutex> lock(step_mutex_);
      abandoned = inbox_.abandoned();
      if (abandoned.ok()) TakeStep(std::exchange(control, {}));
      over_ = finished_ || !abandoned.ok();
    }
    if (!abandoned.ok()) return Abandoned(abandoned);
    if (finished_) return Leave();
    Sleep(&control);
  }
}

void ControlLoop::Apply(EngineEffects effects) {
  for (auto& [to, frame] : effects.frames) {
    sent_.Add(frame);
    transport_->Send(to, std::move(frame));
  }
  if (effects.process_sets != nullptr) {
    runs_->KeepOnly(*effects.process_sets);
    std::lock_guard<std::mutex> lock(state_mutex_);
    sets_ = std::move(effects.process_sets);
  }
  if (effects.health != nullptr) {
    std::lock_guard<std::mutex> lock(state_mutex_);
    health_ = std::move(effects.health);
  }
  for (const PlanRun& run : effects.runs) StartPlan(run);
  if (effects.abort) backend_->Abort(std::move(*effects.abort));
  for (const AttemptEnd& end : effects.left) runs_->OnLeft(end);
  std::vector<FinishedCall> finished;
  for (auto& [id, status] : effects.results) {
    std::optional<FinishedCall> call = table_->Take(id, notes_->Added(std::move(status)));
    if (call) finished.push_back(std::move(*call));
  }
  completions_->Push(std::move(finished));
  reports_.Warn(std::move(effects.warnings), effects.abort.has_value());
}

void ControlLoop::StartPlan(const PlanRun& run) {
  const TimePoint now = MonotonicNow();
  const std::vector<RunningCall*> calls =
      table_->Begin(run.plan.sequence, run.calls, run.plan.items, now);
  if (!run.uses_backend()) {
    // Joins and changes of process sets: that the plan came is all there is to run.
    Count({}, calls.size());
    const LocalCall& call = calls.at(0)->call;
    if (call.announce) call.announce({run.plan.items[0].negotiated_values[0]});
    if (!run.disbanded.empty()) backend_->Disband(run.disbanded);
    return OnCompletion({run.plan.sequence, OkStatus(), kNoRank});
  }
  Result<Collective> collective = BuildCollective(run, rank_, calls);
  if (!collective.ok()) {
    // The peers run this plan: they would take our bytes of the next one for those of this one.
    backend_->Abort(collective.status());
    return OnCompletion(Completion{run.plan.sequence, collective.status(), kNoRank});
  }
  Count(collective->buffers, calls.size());
  if (run.entry == PlanEntry::kEntered) collective->entered = now;
  reports_.PlanQueued(run, now, &*collective);
  backend_->Submit(std::move(*collective));
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

std::shared_ptr<const ProcessSets> ControlLoop::process_sets() const {
  std::lock_guard<std::mutex> lock(state_mutex_);
  return sets_;
}

std::shared_ptr<const GenerationHealth> ControlLoop::health() const {
  std::lock_guard<std::mutex> lock(state_mutex_);
  return health_;
}

ControlLoop::Counts ControlLoop::counts() const {
  std::lock_guard<std::mutex> lock(counts_mutex_);
  Counts counts = counts_;
  if (backend_ != nullptr) {
    counts.data_wakeups = backend_->wakeups();
    counts.bytes_sent = backend_->bytes_sent();
  }
  counts.control_wakeups = transport_->wakeups();
  counts.frames_sent = sent_.frames();
  counts.frames_received = received_.frames();
  counts.heartbeats_sent = sent_.heartbeats();
  counts.heartbeats_received = received_.heartbeats();
  return counts;
}

bool ControlLoop::Progresses(int64_t* seen) const {
  std::lock_guard<std::mutex> lock(counts_mutex_);
  const int64_t before = std::exchange(*seen, backend_ == nullptr ? 0 : backend_->progress());
  return stays_ || *seen != before;
}

void ControlLoop::DropBackend(const Status& why) {
  backend_->Abort(why);
  std::unique_ptr<CollectiveBackend> backend;
  {
    std::lock_guard<std::mutex> lock(counts_mutex_);
    counts_.data_wakeups = backend_->wakeups();
    counts_.bytes_sent = backend_->bytes_sent();
    reports_.Sent(counts_.bytes_sent, counts_.cache_hits);
    backend = std::move(backend_);
  }
  backend.reset();  // joins its threads and closes the data streams
}

void ControlLoop::Abandoned(const Status& why) {
  const Status told = notes_->Added(why);
  completions_->Push(table_->TakeWaiting(told));
  // A backend that is told of a lost rank waits for nobody when it closes its connections.
  DropBackend(Unavailable(why.message()));
  completions_->Push(table_->TakeAll(told));
  transport_->Close(MonotonicNow() + kAbandonedCloseLimit);
}

void ControlLoop::Leave() {
  const TimePoint deadline = MonotonicNow() + kCloseLimit;
  const Status why = Cancelled("rank " + std::to_string(rank_) + " has shut down");
  DropBackend(why);
  transport_->Close(deadline);
  completions_->Push(table_->TakeAll(why));
}

}  // namespace tfring
