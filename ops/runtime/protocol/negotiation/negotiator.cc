#include "ops/runtime/protocol/negotiation/negotiator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/protocol/negotiation/participant.h"
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

std::vector<std::string> EncodePlans(const std::vector<Sequencer::Addressed>& plans,
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

}  // namespace

struct Negotiator::Local {
  Local(Rank r, int s, ProcessSets* sets) : rank(r), size(s), participant(r, sets) {}

  const Rank rank;
  const int size;
  Participant participant;
  Output out;
  TimePoint now = 0;  // the latest seen
  bool dead = false;  // there was a fatal status: nothing is sent or received any more
};

Negotiator::Negotiator(Rank rank, int size, const Config& config, ProcessSets* process_sets)
    : local_(std::make_unique<Local>(rank, size, process_sets)) {
  if (rank == kSequencerRank) sequencer_ = std::make_unique<Sequencer>(config, *process_sets);
}

Negotiator::~Negotiator() = default;

void Negotiator::Fail(Status status) {
  if (local_->dead) return;
  local_->dead = true;
  local_->out.fatal = std::move(status);
}

void Negotiator::FailPeer(Rank from, const Status& why) {
  if (why.ok()) return;
  Fail(Internal("rank " + std::to_string(from) + " broke the negotiation with rank " +
                std::to_string(local_->rank) + ": " + why.message()));
}

void Negotiator::Submit(CallId id, Request request, TimePoint now) {
  local_->now = now;
  local_->participant.Submit(id, std::move(request));  // for TakeCalls, also after a fatal status
  if (sequencer_ && !local_->dead) PassOwnRequests();
}

void Negotiator::PassOwnRequests() {
  std::vector<Request> requests;
  std::vector<uint32_t> cache_ids;
  local_->participant.TakeOutgoing(&requests, &cache_ids);
  FailPeer(kSequencerRank,
           sequencer_->OnRequests(kSequencerRank, std::move(requests), cache_ids, local_->now));
}

void Negotiator::OnFrame(Rank from, std::string_view frame, TimePoint now) {
  if (local_->dead) return;
  local_->now = now;
  if (from < 0 || from >= local_->size || from == local_->rank) {
    return FailPeer(from, Internal("there is no such peer"));
  }
  Result<Frame> decoded = DecodeFrame(frame);
  if (!decoded.ok()) return FailPeer(from, decoded.status());
  const bool for_sequencer = decoded->type == FrameType::kRequests;
  if (for_sequencer ? sequencer_ == nullptr : from != kSequencerRank) {
    return FailPeer(from,
                    Internal("a frame of type " + std::to_string(static_cast<int>(decoded->type)) +
                             " does not go from rank " + std::to_string(from) + " to rank " +
                             std::to_string(local_->rank)));
  }
  switch (decoded->type) {
    case FrameType::kRequests:
      return FailPeer(from, sequencer_->OnRequests(from, std::move(decoded->requests),
                                                   decoded->cache_ids, now));
    case FrameType::kPlans:
      for (Plan& plan : decoded->plans) TakePlan(from, std::move(plan));
      return;
    case FrameType::kResend:
      return FailPeer(from, local_->participant.OnResend(decoded->cache_ids));
    default:
      FailPeer(from, Internal("a frame of type " + std::to_string(static_cast<int>(decoded->type)) +
                              " is not part of the negotiation"));
  }
}

void Negotiator::TakePlan(Rank from, Plan plan) {
  if (local_->dead) return;
  PlanRun run;
  run.plan = std::move(plan);
  const Status status = local_->participant.OnPlan(&run);
  if (!status.ok()) return FailPeer(from, status);
  local_->out.runs.push_back(std::move(run));
}

void Negotiator::OnPlanDone(uint64_t sequence, TimePoint now) {
  local_->now = now;
  if (sequencer_) sequencer_->OnPlanDone(sequence);
}

void Negotiator::OnDeparted(Rank rank, TimePoint now) {
  local_->now = now;
  if (sequencer_) sequencer_->OnDeparted(rank);
}

void Negotiator::OnTime(TimePoint now) {
  local_->now = now;
  if (!sequencer_ || local_->dead) return;
  const Status status = sequencer_->OnTime(now, &local_->out.warnings);
  if (!status.ok()) Fail(status);
}

Negotiator::Output Negotiator::Drain() {
  if (!local_->dead) {
    if (sequencer_) {
      SendPlans();
    } else {
      SendRequests();
    }
  }
  return std::exchange(local_->out, Output());
}

void Negotiator::SendRequests() {
  std::vector<Request> requests;
  std::vector<uint32_t> cache_ids;
  local_->participant.TakeOutgoing(&requests, &cache_ids);
  if (requests.empty() && cache_ids.empty()) return;
  for (std::string& frame : EncodeRequests(std::move(requests), std::move(cache_ids))) {
    local_->out.frames.emplace_back(kSequencerRank, std::move(frame));
  }
}

void Negotiator::SendPlans() {
  Sequencer::Outgoing outgoing = sequencer_->Take();
  const auto own = outgoing.resend.find(kSequencerRank);
  if (own != outgoing.resend.end()) {
    // Ids of this rank itself were evicted: sent in full, the tensors may be complete at once.
    FailPeer(kSequencerRank, local_->participant.OnResend(own->second));
    outgoing.resend.erase(own);
    PassOwnRequests();
    Sequencer::Outgoing more = sequencer_->Take();
    for (auto& plan : more.plans) outgoing.plans.push_back(std::move(plan));
  }
  for (auto& [rank, ids] : outgoing.resend) {
    Frame frame;
    frame.type = FrameType::kResend;
    frame.cache_ids = std::move(ids);
    local_->out.frames.emplace_back(rank, EncodeFrame(frame));
  }
  std::map<Rank, std::vector<size_t>> chosen;
  for (size_t i = 0; i < outgoing.plans.size(); ++i) {
    for (Rank rank : outgoing.plans[i].recipients) chosen[rank].push_back(i);
  }
  // Most ranks get the same plans: encode each selection once.
  std::map<std::vector<size_t>, std::vector<std::string>> encoded;
  for (const auto& [rank, indices] : chosen) {
    if (rank == kSequencerRank) continue;
    std::vector<std::string>& frames = encoded[indices];
    if (frames.empty()) frames = EncodePlans(outgoing.plans, indices);
    for (const std::string& frame : frames) local_->out.frames.emplace_back(rank, frame);
  }
  for (size_t index : chosen[kSequencerRank]) {
    TakePlan(kSequencerRank, std::move(outgoing.plans[index].plan));
  }
}

TimePoint Negotiator::next_deadline() const {
  return sequencer_ && !local_->dead ? sequencer_->next_deadline() : kNever;
}

std::vector<CallId> Negotiator::TakeCalls() {
  std::vector<CallId> calls = local_->participant.TakeCalls();
  for (const PlanRun& run : local_->out.runs) {
    calls.insert(calls.end(), run.calls.begin(), run.calls.end());
  }
  local_->out.runs.clear();
  std::sort(calls.begin(), calls.end());
  return calls;
}

size_t Negotiator::waiting() const { return local_->participant.waiting(); }

int64_t Negotiator::cache_hits() const { return local_->participant.cache_hits(); }

}  // namespace tfring
