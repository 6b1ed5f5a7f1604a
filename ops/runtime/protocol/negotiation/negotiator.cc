#include "ops/runtime/protocol/negotiation/negotiator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/protocol/negotiation/sequencer.h"

namespace tfring {
namespace {

constexpr Rank kSequencerRank = 0;
// Requests or plans that go to one rank together take several frames beyond this size.
constexpr size_t kMaxBatchBytes = kMaxFrameBytes / 4;

std::vector<std::string> EncodeRequests(std::vector<Request> requests,
                                        std::vector<uint32_t> cache_ids) {
  std::vector<std::string> frames;
  Frame frame;
  frame.type = FrameType::kRequests;
  frame.cache_ids = std::move(cache_ids);  // in the first frame: the sequencer wants ids first
  size_t bytes = 0;
  for (Request& request : requests) {
    const size_t more = MaxEncodedBytes(request);
    if (bytes > 0 && bytes + more > kMaxBatchBytes) {
      frames.push_back(EncodeFrame(frame));
      frame.requests.clear();
      frame.cache_ids.clear();
      bytes = 0;
    }
    bytes += more;
    frame.requests.push_back(std::move(request));
  }
  frames.push_back(EncodeFrame(frame));
  return frames;
}

std::vector<std::string> EncodePlans(const std::vector<AddressedPlan>& plans,
                                     const std::vector<size_t>& chosen) {
  std::vector<std::string> frames;
  Frame frame;
  frame.type = FrameType::kPlans;
  size_t bytes = 0;
  for (size_t index : chosen) {
    const size_t more = MaxEncodedBytes(plans[index].plan);
    if (bytes > 0 && bytes + more > kMaxBatchBytes) {
      frames.push_back(EncodeFrame(frame));
      frame.plans.clear();
      bytes = 0;
    }
    bytes += more;
    frame.plans.push_back(plans[index].plan);
  }
  frames.push_back(EncodeFrame(frame));
  return frames;
}

// As they go to rank 0.
std::vector<std::string> FramesOf(std::vector<RequestBatch> batches) {
  std::vector<std::string> frames;
  for (RequestBatch& batch : batches) {
    if (batch.frozen) {
      Frame frame;
      frame.type = FrameType::kFrozen;
      frame.lock = *batch.frozen;
      frames.push_back(EncodeFrame(frame));
    }
    for (auto& [set, cause] : batch.withdrawals) {
      Frame frame;
      frame.type = FrameType::kWithdraw;
      frame.process_set = set;
      frame.status = std::move(cause);
      frames.push_back(EncodeFrame(frame));
    }
    if (batch.requests.empty() && batch.cache_ids.empty()) continue;
    for (std::string& frame :
         EncodeRequests(std::move(batch.requests), std::move(batch.cache_ids))) {
      frames.push_back(std::move(frame));
    }
  }
  return frames;
}

}  // namespace

Negotiator::Negotiator(Rank rank, int size, const Config& config, ProcessSets* process_sets)
    : rank_(rank), size_(size), participant_(rank, process_sets) {
  if (rank != kSequencerRank) return;
  sequencer_ = std::make_unique<Sequencer>(config, *process_sets);
  coordinator_ = std::make_unique<LockCoordinator>(size);
}

Negotiator::~Negotiator() = default;

void Negotiator::Fail(Status status) {
  if (dead_) return;
  dead_ = true;
  out_.fatal = std::move(status);
}

void Negotiator::FailPeer(Rank from, const Status& why) {
  if (why.ok()) return;
  Fail(Internal("rank " + std::to_string(from) + " broke the negotiation with rank " +
                std::to_string(rank_) + ": " + why.message()));
}

void Negotiator::Submit(CallId id, Request request, TimePoint now, uint64_t attempt) {
  now_ = now;
  // For TakeCalls, also after a fatal status.
  Status submitted = participant_.Submit(id, std::move(request), attempt, now);
  if (!submitted.ok()) out_.refused.emplace_back(id, std::move(submitted));
  if (sequencer_ && !dead_) PassOwnRequests();
}

void Negotiator::Withdraw(ProcessSetId set, uint64_t attempt, const std::string& why,
                          TimePoint now) {
  now_ = now;
  participant_.Withdraw(set, attempt, why);
  if (sequencer_ && !dead_) PassOwnRequests();
}

void Negotiator::PassOwnRequests() {
  for (RequestBatch& batch : participant_.TakeOutgoing()) {
    if (batch.frozen) OnFrozen(kSequencerRank, *batch.frozen);
    batch.frozen.reset();
    own_kept_.push_back(std::move(batch));
  }
  if (locked()) return;
  for (RequestBatch& batch : std::exchange(own_kept_, {})) {
    for (const auto& [set, cause] : batch.withdrawals) {
      FailPeer(kSequencerRank, sequencer_->OnWithdrawal(kSequencerRank, set, cause));
    }
    FailPeer(kSequencerRank, sequencer_->OnRequests(kSequencerRank, std::move(batch.requests),
                                                    batch.cache_ids, now_));
  }
}

void Negotiator::OnFrame(Rank from, std::string_view frame, TimePoint now) {
  if (dead_) return;
  now_ = now;
  if (from < 0 || from >= size_ || from == rank_) {
    return FailPeer(from, Internal("there is no such peer"));
  }
  Result<Frame> decoded = DecodeFrame(frame);
  if (!decoded.ok()) return FailPeer(from, decoded.status());
  const bool for_sequencer = decoded->type == FrameType::kRequests ||
                             decoded->type == FrameType::kWithdraw ||
                             decoded->type == FrameType::kFrozen;
  if (for_sequencer ? sequencer_ == nullptr : from != kSequencerRank) {
    return FailPeer(from,
                    Internal("a frame of type " + std::to_string(static_cast<int>(decoded->type)) +
                             " does not go from rank " + std::to_string(from) + " to rank " +
                             std::to_string(rank_)));
  }
  switch (decoded->type) {
    case FrameType::kRequests:
      return FailPeer(from, sequencer_->OnRequests(from, std::move(decoded->requests),
                                                   decoded->cache_ids, now));
    case FrameType::kWithdraw:
      return FailPeer(from, sequencer_->OnWithdrawal(from, decoded->process_set, decoded->status));
    case FrameType::kPlans:
      for (Plan& plan : decoded->plans) ReceivePlan(from, std::move(plan));
      return;
    case FrameType::kLock:
    case FrameType::kStop:
    case FrameType::kFrozen:
    case FrameType::kUnlock:
      return OnLockFrame(from, decoded->type, decoded->lock);
    default:
      FailPeer(from, Internal("a frame of type " + std::to_string(static_cast<int>(decoded->type)) +
                              " is not part of the negotiation"));
  }
}

void Negotiator::ReceivePlan(Rank from, Plan plan) {
  if (dead_) return;
  PlanRun run;
  run.plan = std::move(plan);
  const Status status = participant_.OnPlan(&run);
  if (!status.ok()) return FailPeer(from, status);
  TakeEntered();
  out_.runs.push_back(std::move(run));
}

void Negotiator::OnPlanDone(uint64_t sequence, TimePoint now, bool failed) {
  now_ = now;
  participant_.locked().OnPlanEnded(sequence);
  if (sequencer_) sequencer_->planner().OnPlanDone(sequence, failed);
}

void Negotiator::OnDeparted(Rank rank, const std::string& error, TimePoint now) {
  now_ = now;
  if (sequencer_) sequencer_->OnDeparted(rank, error);
}

std::vector<CallId> Negotiator::Leave(const std::string& error, TimePoint now) {
  std::vector<CallId> calls = TakeCalls();
  OnDeparted(rank_, error, now);
  return calls;
}

void Negotiator::PutOff(Duration pause) {
  lock_timer_.PutOff(pause);
  if (sequencer_) sequencer_->stalls().PutOff(pause);
}

void Negotiator::OnTime(TimePoint now, int64_t progress) {
  now_ = now;
  lock_timer_.Update(participant_.locked().schedule(), now);
  if (lock_timer_.Expired(now, progress)) StopLock(participant_.locked().WhatWaits(), now);
  if (!sequencer_ || dead_ || now < sequencer_->stalls().next_deadline()) return;
  const Status status = sequencer_->stalls().OnTime(now, &out_.warnings);
  if (!status.ok()) Fail(status);
}

Negotiator::Output Negotiator::Drain() {
  if (!dead_) {
    if (sequencer_) {
      SendPlans();
    } else {
      SendRequests();
    }
  }
  out_.left = participant_.TakeLeft();
  out_.locks = participant_.locked().TakeNews();
  TakeEntered();
  lock_timer_.Update(participant_.locked().schedule(), now_);
  return std::exchange(out_, Output());
}

void Negotiator::SendRequests() {
  for (std::string& frame : FramesOf(participant_.TakeOutgoing())) {
    out_.frames.emplace_back(kSequencerRank, std::move(frame));
  }
}

void Negotiator::SendPlans() {
  Sequencer::Outgoing outgoing;
  if (!locked()) outgoing = sequencer_->Take();
  std::map<Rank, std::vector<size_t>> chosen;
  for (size_t i = 0; i < outgoing.plans.size(); ++i) {
    for (Rank rank : outgoing.plans[i].recipients) chosen[rank].push_back(i);
    const Status& error = outgoing.plans[i].plan.error;
    out_.cancels = out_.cancels || error.code() == StatusCode::kCancelled;
  }
  // Most ranks get the same plans: encode each selection once.
  std::map<std::vector<size_t>, std::vector<std::string>> encoded;
  for (const auto& [rank, indices] : chosen) {
    if (rank == kSequencerRank) continue;
    std::vector<std::string>& frames = encoded[indices];
    if (frames.empty()) frames = EncodePlans(outgoing.plans, indices);
    for (const std::string& frame : frames) out_.frames.emplace_back(rank, frame);
  }
  for (size_t index : chosen[kSequencerRank]) {
    ReceivePlan(kSequencerRank, std::move(outgoing.plans[index].plan));
  }
  if (outgoing.lock) StartLock(*outgoing.lock);
  // The plans may have made rank 0 leave an attempt: tell the sequencer. That attempt is over
  // already, so no plan comes of it.
  PassOwnRequests();
}

TimePoint Negotiator::next_deadline() const {
  if (dead_) return kNever;
  return std::min(lock_timer_.deadline(),
                  sequencer_ ? sequencer_->stalls().next_deadline() : kNever);
}

std::vector<CallId> Negotiator::TakeCalls() {
  TakeEntered();
  std::vector<CallId> calls = participant_.TakeCalls();
  for (const PlanRun& run : out_.runs) {
    calls.insert(calls.end(), run.calls.begin(), run.calls.end());
  }
  for (const auto& refused : out_.refused) calls.push_back(refused.first);
  out_.runs.clear();
  out_.refused.clear();
  std::sort(calls.begin(), calls.end());
  return calls;
}

bool Negotiator::holds_back() const {
  return sequencer_ != nullptr && sequencer_->planner().holds_back();
}

// Locked schedules: see docs/adr/0045-locked-schedule.md.
void Negotiator::OnLockFrame(Rank from, FrameType type, const LockMessage& message) {
  switch (type) {
    case FrameType::kLock:
      return FailPeer(from, participant_.OnLock(message, now_));
    case FrameType::kStop:
      return FailPeer(from, participant_.locked().OnStop(message));
    case FrameType::kUnlock:
      return FailPeer(from, EndOwnLock(message));
    default:
      return OnFrozen(from, message);
  }
}

// Rank 0: all ranks get the lock behind the plans that were numbered before it.
void Negotiator::StartLock(const LockMessage& lock) {
  coordinator_->Start(lock);
  SendToOthers(FrameType::kLock, lock);
  FailPeer(kSequencerRank, participant_.OnLock(lock, now_));
}

// Rank 0: with the first rank that freezes, all have to.
void Negotiator::OnFrozen(Rank from, const LockMessage& message) {
  const bool first = !coordinator_->any_frozen();
  const Status status = coordinator_->OnFrozen(from, message);
  if (!status.ok()) return FailPeer(from, status);
  if (first) {
    LockMessage stop;
    stop.id = message.id;
    SendToOthers(FrameType::kStop, stop);
    participant_.locked().Stop({});
    PassOwnRequests();
  }
  if (const auto unlock = coordinator_->TakeUnlock()) Unlock(*unlock);
}

void Negotiator::Unlock(const LockMessage& unlock) {
  SendToOthers(FrameType::kUnlock, unlock);
  FailPeer(kSequencerRank, EndOwnLock(unlock));
  if (dead_) return;
  FailPeer(kSequencerRank, sequencer_->OnUnlock(unlock, *coordinator_, now_));
  PassOwnRequests();
}

Status Negotiator::EndOwnLock(const LockMessage& unlock) {
  TakeEntered();
  recalled_.emplace();
  return participant_.OnUnlock(unlock, &*recalled_);
}

void Negotiator::SendToOthers(FrameType type, const LockMessage& message) {
  Frame frame;
  frame.type = type;
  frame.lock = message;
  const std::string bytes = EncodeFrame(frame);
  for (Rank rank = 1; rank < size_; ++rank) {
    const bool knows = type == FrameType::kStop && coordinator_->frozen(rank);
    if (!knows) out_.frames.emplace_back(rank, bytes);
  }
}

void Negotiator::StopLock(UnlockReason reason, TimePoint now) {
  now_ = now;
  participant_.locked().Stop(std::move(reason));
  if (sequencer_ && !dead_) PassOwnRequests();
}

void Negotiator::TakeEntered() {
  for (PlanRun& run : participant_.locked().TakeRuns()) out_.runs.push_back(std::move(run));
}

}  // namespace tfring
