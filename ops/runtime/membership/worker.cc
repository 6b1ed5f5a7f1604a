#include "ops/runtime/membership/worker.h"

#include <algorithm>
#include <utility>

#include "ops/runtime/base/text.h"

namespace tfring::membership {

Worker::Worker(WorkerOptions options) : options_(std::move(options)) {}

WorkerEffects Worker::Step(TimePoint now, WorkerEvents events) {
  WorkerEffects effects;
  if (state_ == WorkerState::kExcluded || state_ == WorkerState::kExited) return effects;
  // Nothing could be heard while this process did not run.
  const TimePoint late = next_deadline() == kNever ? 0 : now - next_deadline();
  if (WaitsForAnswers() && late > kPause) waits_since_ += late;
  for (Command& command : events.commands) {
    Handle(now, std::move(command), &effects);
    if (effects.exit) return effects;
  }
  if (events.attached) {
    introduced_ = attached_ = sequence_ + 1;
    news_ = true;
  }
  HandleProgram(now, events, &effects);
  if (WaitsForAnswers() && now >= After(waits_since_, options_.patience)) {
    Leave(WorkerState::kExited, kExitTryAgain,
          "the coordinator has not answered worker " + std::to_string(options_.worker) + " for " +
              SecondsText(options_.patience) + ": is the launcher still there?",
          &effects);
    return effects;
  }
  if (next_beat_ != kNever && (news_ || now >= next_beat_)) {
    effects.reports.push_back(MakeReport(now));
  }
  return effects;
}

TimePoint Worker::next_deadline() const {
  if (state_ == WorkerState::kExcluded || state_ == WorkerState::kExited) return kNever;
  return WaitsForAnswers() ? std::min(next_beat_, After(waits_since_, options_.patience))
                           : next_beat_;
}

bool Worker::InGeneration() const {
  return state_ == WorkerState::kJoining || state_ == WorkerState::kMesh ||
         state_ == WorkerState::kSync || state_ == WorkerState::kRunning;
}

bool Worker::WaitsForAnswers() const { return waits_since_ != kNever; }

bool Worker::Admits(Generation generation, uint64_t nonce) const {
  const bool connects = state_ == WorkerState::kJoining || state_ == WorkerState::kMesh;
  return connects && generation == record_.generation && nonce == record_.nonce;
}

bool Worker::Runs(Generation generation) const {
  return state_ == WorkerState::kRunning && generation == record_.generation;
}

bool Worker::MayPublish(TimePoint now) const {
  return state_ == WorkerState::kRunning && now < lease_end_;
}

void Worker::Enter(TimePoint now, WorkerState state) {
  state_ = state;
  news_ = true;
  introduced_ = sequence_ + 1;
  // A program without elastic.run trains while it could take the state.
  if (state == WorkerState::kRunning || state == WorkerState::kSync) {
    waits_since_ = kNever;
  } else if (waits_since_ == kNever) {
    waits_since_ = now;
  }
}

void Worker::Leave(WorkerState state, int code, std::string reason, WorkerEffects* effects) {
  if (InGeneration()) effects->abandon = record_.generation;
  state_ = state;
  effects->connect.reset();
  effects->sync.reset();
  effects->reports.clear();
  effects->exit = WorkerEffects::Exit{code, std::move(reason)};
}

void Worker::Abandon(WorkerEffects* effects) {
  effects->abandon = record_.generation;
  effects->connect.reset();
  effects->sync.reset();
  effects->announce_change = false;
}

void Worker::Handle(TimePoint now, Command command, WorkerEffects* effects) {
  switch (command.kind) {
    case CommandKind::kAnswer:
      answered_ = std::max(answered_, command.sequence);
      if (waits_since_ != kNever) waits_since_ = now;
      // A tenth less than the coordinator's, for clocks that do not run alike.
      if (command.generation != 0 && command.generation == record_.generation) {
        lease_end_ = std::max(lease_end_, command.sent_at + options_.lease / 10 * 9);
      }
      return;
    case CommandKind::kPropose:
      if (command.record.generation <= record_.generation ||
          RankOf(command.record, options_.worker) == kNoRank) {
        return;
      }
      if (state_ == WorkerState::kWaiting || state_ == WorkerState::kBroken) {
        record_ = std::move(command.record);
        boundary_ = done_ = announced_ = false;
        suspect_ = kNobody;
        lease_end_ = INT64_MIN;
        Enter(now, WorkerState::kJoining);
        effects->connect = record_;
      } else if (InGeneration()) {  // the order to end the last one was lost
        Abandon(effects);
        Enter(now, WorkerState::kStopping);
      }
      return;
    case CommandKind::kGo:
      if (state_ != WorkerState::kMesh || command.generation != record_.generation) return;
      Enter(now, WorkerState::kSync);
      effects->sync = record_;
      return;
    case CommandKind::kEnd:
      if (!InGeneration() || command.generation != record_.generation) return;
      Abandon(effects);
      Enter(now, WorkerState::kStopping);
      return;
    case CommandKind::kChangePending:
      if (announced_ || !Runs(command.generation)) return;
      announced_ = news_ = true;
      effects->announce_change = true;
      return;
    case CommandKind::kExcluded:
      Leave(WorkerState::kExcluded, kExitTryAgain, std::move(command.reason), effects);
      return;
    case CommandKind::kExit:
      Leave(WorkerState::kExited, command.exit_code, std::move(command.reason), effects);
      return;
  }
}

void Worker::HandleProgram(TimePoint now, const WorkerEvents& events, WorkerEffects* effects) {
  if (events.leave && !leaving_) leaving_ = news_ = true;
  if (state_ == WorkerState::kIdle || state_ == WorkerState::kWaiting) {
    position_ = events.committed.value_or(position_);  // of a copy that a new worker has found
  }
  if (events.ready && state_ == WorkerState::kIdle) {
    Enter(now, WorkerState::kWaiting);
    next_beat_ = now;
  }
  if (events.connected == record_.generation && state_ == WorkerState::kJoining) {
    Enter(now, WorkerState::kMesh);
  }
  if (events.synced && events.synced->generation == record_.generation &&
      state_ == WorkerState::kSync) {
    position_ = events.synced->position;
    step_ = position_.step;
    Enter(now, WorkerState::kRunning);
  }
  if (state_ == WorkerState::kRunning) {
    position_ = events.committed.value_or(position_);
    step_ = events.step.value_or(step_);
  }
  if (events.failed && events.failed->generation == record_.generation) {
    // Whom it could not reach counts also if the coordinator has ended the generation meanwhile.
    if (InGeneration() || state_ == WorkerState::kStopping) suspect_ = events.failed->suspect;
    if (InGeneration()) {
      Abandon(effects);
      Enter(now, WorkerState::kStopping);
    }
  }
  if (events.stopped) HandleStopped(now, *events.stopped);
}

void Worker::HandleStopped(TimePoint now, const WorkerEvents::Stopped& stopped) {
  if (stopped.generation != record_.generation) return;
  if (state_ != WorkerState::kStopping && state_ != WorkerState::kRunning) return;
  position_ = stopped.position;
  step_ = position_.step;
  boundary_ = stopped.boundary;
  done_ = stopped.done;
  Enter(now, WorkerState::kBroken);
}

Report Worker::MakeReport(TimePoint now) {
  next_beat_ = After(now, options_.beat);
  news_ = false;
  Report report;
  report.worker = options_.worker;
  report.sequence = ++sequence_;
  report.sent_at = now;
  report.state = state_;
  report.generation = record_.generation;
  report.position = position_;
  report.step = step_;
  report.boundary = boundary_;
  report.done = done_;
  report.leaving = leaving_;
  report.announced = announced_;
  report.suspect = suspect_;
  if (answered_ < introduced_) {
    report.host = options_.host;
    report.slot = options_.slot;
  }
  if (answered_ < attached_) report.record = record_;
  return report;
}

}  // namespace tfring::membership
