#include "ops/runtime/process/loop_reports.h"

#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/log.h"

namespace tfring {
void LockReports::Report(const LockNews& news) {
  std::atomic<int64_t>& count =
      news.over ? unlocks_[static_cast<size_t>(news.reason.cause)] : locks_;
  const int64_t number = count.fetch_add(1, std::memory_order_relaxed) + 1;
  if (recorder_ != nullptr) recorder_->Locked(!news.over);
  const bool power_of_two = (number & (number - 1)) == 0;
  if (power_of_two) Tell(news, number);
}

void LockReports::Tell(const LockNews& news, int64_t number) {
  std::string text = NewsText(news);
  if (number > 1) {
    text += " (number " + std::to_string(number) +
            (news.over ? " that ended in this way)" : " of this generation)");
  }
  if (recorder_ != nullptr) {
    const auto value = static_cast<int64_t>(news.over ? news.rounds : news.tensors);
    recorder_->Event(news.over ? EventType::kUnlock : EventType::kLock, StatusCode::kOk, value,
                     text);
  }
  if (rank_ != 0) return;
  TFRING_LOG(kDebug) << text;
}

void LockReports::Rounds(uint64_t rounds) {
  const auto count = static_cast<int64_t>(rounds);
  if (rounds_.load(std::memory_order_relaxed) >= count) return;
  rounds_.store(count, std::memory_order_relaxed);
  if (recorder_ != nullptr) recorder_->LockRounds(count);
}

std::map<std::string, int64_t> LockReports::Counts() const {
  std::map<std::string, int64_t> counts = {
      {"locks", locks_.load(std::memory_order_relaxed)},
      {"lock_rounds", rounds_.load(std::memory_order_relaxed)},
  };
  for (int cause = 1; cause < kUnlockCauses; ++cause) {
    counts[std::string("unlocks_") + UnlockCauseName(static_cast<UnlockCause>(cause))] =
        unlocks_[static_cast<size_t>(cause)].load(std::memory_order_relaxed);
  }
  return counts;
}

namespace {

// "0: 0-3; 1: 0, 2", as tfring/observe/recorder/job.py reads it.
std::string SetsText(const ProcessSets& sets) {
  std::string text;
  for (const auto& [id, ranks] : sets.all()) {
    text += (text.empty() ? "" : "; ") + std::to_string(id) + ": " + RanksString(ranks);
  }
  return text;
}

}  // namespace

void LoopReports::Step(const EngineEffects& effects, TimePoint now,
                       const CollectiveBackend& backend, const Engine& engine) {
  if (Recorder* recorder = Recording(recorder_)) {
    recorder->Awake(now);
    // bytes_sent is read here and not where a plan ends, because backends hold locks there that
    // bytes_sent may need. After its last plan a rank gets here with its next heartbeat.
    recorder->Sent(backend.bytes_sent(), engine.cache_hits());
    recorder->Buffers(backend.memory());
  }
  if (recorder_ != nullptr) Record(effects);
  for (const LockNews& news : effects.locks) locks_.Report(news);
  locks_.Rounds(engine.lock_rounds());
}

void LoopReports::Warn(std::vector<std::string> warnings, bool broken) {
  if (warnings.empty() && !broken) return;
  if (warning_event_ != nullptr && warning_event_->Signal(warnings, MonotonicNow())) return;
  for (const std::string& warning : warnings) TFRING_LOG(kWarning) << warning;
}

void LoopReports::Record(const EngineEffects& effects) {
  for (const std::string& warning : effects.warnings) {
    recorder_->Event(EventType::kWarning, StatusCode::kOk, 0, warning);
  }
  for (const AttemptEnd& end : effects.left) {
    recorder_->Event(EventType::kStepFailed, StatusCode::kAborted, end.process_set,
                     end.error.message());
  }
  if (effects.process_sets != nullptr) {
    recorder_->Event(EventType::kProcessSets, StatusCode::kOk,
                     static_cast<int64_t>(effects.process_sets->all().size()),
                     SetsText(*effects.process_sets));
  }
  for (const auto& [id, status] : effects.results) {
    if (status.ok()) continue;
    recorder_->Event(EventType::kCallFailed, status.code(), static_cast<int64_t>(id),
                     status.message());
    break;
  }
  if (!effects.abort) return;
  recorder_->Event(EventType::kAbort, effects.abort->code(), 0, effects.abort->message());
  recorder_->State(RankState::kFailed);
}

void LoopReports::PlanQueued(const PlanRun& run, TimePoint now, Collective* collective) {
  Recorder* const recorder = Recording(recorder_);
  collective->traffic = recorder;
  if (recorder == nullptr) return;
  const std::vector<TensorBuffer>& buffers = collective->buffers;
  collective->marks = recorder->PlanQueued(run, buffers.size(), InputBytes(buffers), now);
}

void LoopReports::PlanEnded(const Completion& completion, TimePoint now) {
  Recorder* const recorder = Recording(recorder_);
  if (recorder == nullptr) return;
  if (completion.stage == CompletionStage::kLaunched) {
    recorder->PlanLaunched(completion.sequence, now);
  } else {
    recorder->PlanEnded(completion.sequence, completion.status.code(), now);
  }
}

void LoopReports::Sent(int64_t bytes_sent, int64_t cache_hits) {
  if (recorder_ != nullptr) recorder_->Sent(bytes_sent, cache_hits);
}

}  // namespace tfring
