#include "ops/runtime/process/call_table.h"

#include <algorithm>
#include <iterator>

#include "ops/runtime/base/check.h"
#include "ops/runtime/base/clock.h"

namespace tfring {

Status CallTable::Add(Request* request, LocalCall* call, uint64_t attempt) {
  Accepted accepted;
  accepted.key = std::to_string(request->process_set) + ":" + request->name;
  accepted.process_set = request->process_set;
  accepted.attempt = attempt;
  if (Traits(request->kind).allocates_output()) accepted.running.shapes = request->shapes;
  Recorder* const recorder = Recording(recorder_);
  const TimePoint now = recorder == nullptr ? 0 : MonotonicNow();
  std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_.ok()) return closed_;
  if (!names_.insert(accepted.key).second) {
    return InvalidArgument("tensor '" + request->name +
                           "' is in flight on this rank already: wait for that call to end, or "
                           "give this one another name");
  }
  const CallId id = next_id_++;
  if (recorder != nullptr) {
    const int flags =
        (call->early ? CallRecord::kEarly : 0) | (call->compiled ? CallRecord::kCompiled : 0);
    accepted.record = recorder->Submitted(*request, InputBytes(call->buffers),
                                          static_cast<uint8_t>(flags), attempt, now);
  }
  accepted.running.call = std::move(*call);
  calls_.emplace(id, std::move(accepted));
  submissions_.emplace_back(id, std::move(*request), attempt);
  return OkStatus();
}

void CallTable::Drain(std::vector<Submission>* out) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (out->empty()) {
    out->swap(submissions_);
    return;
  }
  for (Submission& submission : submissions_) out->push_back(std::move(submission));
  submissions_.clear();
}

bool CallTable::HasSubmissions() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !submissions_.empty();
}

std::vector<RunningCall*> CallTable::Begin(uint64_t sequence, const std::vector<CallId>& ids,
                                           const std::vector<PlanItem>& items, TimePoint now) {
  Recorder* const recorder = Recording(recorder_);
  std::vector<RunningCall*> calls;
  calls.reserve(ids.size());
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) {
    auto it = calls_.find(ids[i]);
    TFRING_CHECK(it != calls_.end()) << "plan " << sequence << " runs call " << ids[i];
    calls.push_back(&it->second.running);
    if (recorder == nullptr) continue;
    recorder->Planned(it->second.record, sequence, i < items.size() ? items[i].asked : AskTimes(),
                      now);
  }
  plans_[sequence].calls = ids;
  return calls;
}

void CallTable::NoteAsked(uint64_t sequence, const AskTimes& asked) {
  Recorder* const recorder = Recording(recorder_);
  if (recorder == nullptr || asked.last_rank == kNoRank) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto plan = plans_.find(sequence);
  if (plan == plans_.end()) return;
  std::vector<uint64_t> records;
  for (CallId id : plan->second.calls) {
    const auto it = calls_.find(id);
    if (it != calls_.end()) records.push_back(it->second.record);
  }
  recorder->Entered(records, asked);
}

std::vector<FinishedCall> CallTable::TakeLaunched(uint64_t sequence, TimePoint now) {
  std::vector<FinishedCall> finished;
  std::lock_guard<std::mutex> lock(mutex_);
  auto plan = plans_.find(sequence);
  if (plan == plans_.end()) return finished;
  for (CallId id : plan->second.calls) {
    auto it = calls_.find(id);
    if (it == calls_.end() || !it->second.running.call.early) continue;
    Status status = it->second.running.local_failure;
    finished.push_back(Remove(it, std::move(status), now));
    FinishedCall left;
    left.call.keeps = std::move(finished.back().call.keeps);
    left.scratch = std::move(finished.back().scratch);
    plan->second.launched.push_back(std::move(left));
  }
  return finished;
}

std::vector<FinishedCall> CallTable::TakePlan(uint64_t sequence, TimePoint now) {
  std::vector<FinishedCall> finished;
  std::lock_guard<std::mutex> lock(mutex_);
  auto plan = plans_.find(sequence);
  if (plan == plans_.end()) return finished;
  finished.reserve(plan->second.calls.size());
  for (CallId id : plan->second.calls) {
    auto it = calls_.find(id);
    if (it == calls_.end()) continue;
    Status status = it->second.running.local_failure;
    finished.push_back(Remove(it, std::move(status), now));
  }
  for (FinishedCall& left : plan->second.launched) finished.push_back(std::move(left));
  plans_.erase(plan);
  return finished;
}

std::vector<FinishedCall> CallTable::ForgetPlan(uint64_t sequence) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto plan = plans_.find(sequence);
  if (plan == plans_.end()) return {};
  std::vector<FinishedCall> left = std::move(plan->second.launched);
  plans_.erase(plan);
  return left;
}

std::vector<BadCall> CallTable::Locate(uint64_t sequence,
                                       const std::vector<BadValues>& found) const {
  std::vector<BadCall> bad;
  std::lock_guard<std::mutex> lock(mutex_);
  auto plan = plans_.find(sequence);
  if (plan == plans_.end()) return bad;
  size_t first = 0;  // buffer of the plan that is the call's first
  for (CallId id : plan->second.calls) {
    auto it = calls_.find(id);
    if (it == calls_.end()) return bad;  // aborted meanwhile, and so are the others
    const Accepted& call = it->second;
    const size_t count = std::max(call.running.shapes.size(), call.running.call.buffers.size());
    BadCall here;
    for (BadValues tensor : found) {
      if (tensor.buffer < first || tensor.buffer >= first + count) continue;
      tensor.buffer -= first;
      here.tensors.push_back(tensor);
    }
    first += count;
    if (here.tensors.empty()) continue;
    here.id = id;
    here.name = call.key.substr(call.key.find(':') + 1);
    here.process_set = call.process_set;
    if (recorder_ != nullptr) {
      Recorder::Origin origin = recorder_->OriginOf(call.record);
      here.call_site = std::move(origin.call_site);
      here.invocation = origin.invocation;
    }
    bad.push_back(std::move(here));
  }
  return bad;
}

void CallTable::FailLocally(CallId id, Status why) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = calls_.find(id);
  if (it != calls_.end() && it->second.running.local_failure.ok()) {
    it->second.running.local_failure = std::move(why);
  }
}

std::optional<FinishedCall> CallTable::Take(CallId id, Status status) {
  const TimePoint now = MonotonicNow();
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = calls_.find(id);
  if (it == calls_.end()) return std::nullopt;
  // The plan may have succeeded everywhere and still not have given this rank its output.
  if (status.ok()) status = it->second.running.local_failure;
  return Remove(it, std::move(status), now);
}

std::vector<FinishedCall> CallTable::TakeAll(const Status& status) {
  std::vector<FinishedCall> finished;
  const TimePoint now = MonotonicNow();
  std::lock_guard<std::mutex> lock(mutex_);
  finished.reserve(calls_.size());
  while (!calls_.empty()) finished.push_back(Remove(calls_.begin(), status, now));
  for (auto& [sequence, plan] : plans_) {
    for (FinishedCall& left : plan.launched) finished.push_back(std::move(left));
  }
  submissions_.clear();
  plans_.clear();
  return finished;
}

std::vector<FinishedCall> CallTable::TakeWaiting(const Status& status) {
  std::vector<FinishedCall> finished;
  const TimePoint now = MonotonicNow();
  std::lock_guard<std::mutex> lock(mutex_);
  std::unordered_set<CallId> running;
  for (const auto& [sequence, plan] : plans_) {
    running.insert(plan.calls.begin(), plan.calls.end());
  }
  for (auto it = calls_.begin(); it != calls_.end();) {
    const auto next = std::next(it);
    if (running.count(it->first) == 0) finished.push_back(Remove(it, status, now));
    it = next;
  }
  submissions_.clear();
  return finished;
}

std::map<ProcessSetId, uint64_t> CallTable::AttemptsInUse() const {
  std::map<ProcessSetId, uint64_t> newest;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, call] : calls_) {
    uint64_t& attempt = newest[call.process_set];
    attempt = std::max(attempt, call.attempt);
  }
  return newest;
}

void CallTable::CloseAdmission(Status why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_.ok()) closed_ = std::move(why);
}

FinishedCall CallTable::Remove(std::unordered_map<CallId, Accepted>::iterator it, Status status,
                               TimePoint now) {
  RunningCall& running = it->second.running;
  if (recorder_ != nullptr) recorder_->Ended(it->second.record, status.code(), now);
  FinishedCall finished{std::move(running.call), std::move(status), std::move(running.scratch)};
  names_.erase(it->second.key);
  calls_.erase(it);
  return finished;
}

}  // namespace tfring
