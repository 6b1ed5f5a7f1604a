#include "ops/runtime/backend/schedule/runner.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ops/runtime/base/clock.h"

namespace tfring {
namespace {

constexpr int kMaxPieces = 512;               // iovecs per call
constexpr int64_t kStagingBytes = 128 << 10;  // fits the second-level cache

// True for short steps that peers wait for. Longer steps run one at a time, so that sends and
// receives continue in between.
bool RunsAtOnce(StepKind kind) {
  return kind == StepKind::kReduce || kind == StepKind::kJoin || kind == StepKind::kAdasumAdd;
}

}  // namespace

void ScheduleRunner::Watch(ProgressWatch watch, QuietHook hook) {
  watch_ = watch;
  quiet_hook_ = std::move(hook);
}

void ScheduleRunner::Start(const Schedule& schedule, uint64_t sequence,
                           const std::vector<Rank>& members, StepExecutor* executor,
                           PlanMarks* marks) {
  schedule_ = &schedule;
  members_ = &members;
  executor_ = executor;
  marks_ = marks;
  sequence_ = sequence;
  sends_.clear();
  recvs_.clear();
  ready_.clear();
  ready_long_.clear();
  suspect_ = kNoRank;
  data_has_come_ = false;
  watch_.Moved();
  remaining_ = schedule.steps.size();
  LinkDependents();
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const int step = static_cast<int>(i);
    const StepKind kind = schedule.steps[i].kind;
    if (kind == StepKind::kSend) {
      AddToLane(&sends_, step);
    } else if (IsRecv(schedule.steps[i])) {
      AddToLane(&recvs_, step);
    } else if (waiting_for_[i] == 0) {
      (RunsAtOnce(kind) ? ready_ : ready_long_).push_back(step);
    }
  }
  for (Lane& lane : sends_) BeginLane(&lane, true);
  for (Lane& lane : recvs_) BeginLane(&lane, false);
  // Steps are taken from the back, and the first piece should come first.
  std::reverse(ready_long_.begin(), ready_long_.end());
}

void ScheduleRunner::LinkDependents() {
  const std::vector<Step>& steps = schedule_->steps;
  waiting_for_.assign(steps.size(), 0);
  first_dependent_.assign(steps.size() + 1, 0);
  for (size_t i = 0; i < steps.size(); ++i) {
    for (int earlier : steps[i].after) {
      if (earlier == kNoStep) continue;
      ++waiting_for_[i];
      ++first_dependent_[earlier + 1];
    }
  }
  for (size_t i = 0; i < steps.size(); ++i) first_dependent_[i + 1] += first_dependent_[i];
  dependents_.resize(first_dependent_.back());
  std::vector<int> next(first_dependent_.begin(), first_dependent_.end() - 1);
  for (size_t i = 0; i < steps.size(); ++i) {
    for (int earlier : steps[i].after) {
      if (earlier != kNoStep) dependents_[next[earlier]++] = static_cast<int>(i);
    }
  }
}

void ScheduleRunner::AddToLane(std::vector<Lane>* lanes, int step) {
  const int peer = schedule_->steps[step].peer;
  auto lane =
      std::find_if(lanes->begin(), lanes->end(), [peer](const Lane& l) { return l.peer == peer; });
  if (lane == lanes->end()) {
    lanes->emplace_back();
    lane = lanes->end() - 1;
    lane->peer = peer;
  }
  lane->steps.push_back(step);
}

void ScheduleRunner::BeginLane(Lane* lane, bool sends) {
  int64_t bytes = 0;
  for (int step : lane->steps) bytes += StepBytes(schedule_->steps[step]);
  lane->header = MakeLaneHeader(sequence_, bytes, schedule_->algorithm);
  lane->lead_bytes = static_cast<size_t>(LeadBytes(bytes));
  const Rank peer = (*members_)[lane->peer];
  if (sends) {
    std::memcpy(lane->lead, &lane->header, sizeof(LaneHeader));
    transport_->AlignSend(peer);
  } else {
    transport_->AlignRecv(peer);
  }
}

bool ScheduleRunner::HeadReady(const Lane& lane) const {
  return lane.head < lane.steps.size() && waiting_for_[lane.steps[lane.head]] == 0;
}

void ScheduleRunner::Complete(int step) {
  --remaining_;
  for (int i = first_dependent_[step]; i < first_dependent_[step + 1]; ++i) {
    const int later = dependents_[i];
    if (--waiting_for_[later] > 0) continue;
    const Step& next = schedule_->steps[later];
    if (!IsRemote(next)) (RunsAtOnce(next.kind) ? ready_ : ready_long_).push_back(later);
  }
}

void ScheduleRunner::RunReady(bool* moved) {
  while (!ready_.empty()) {
    const int step = ready_.back();
    ready_.pop_back();
    executor_->Execute(schedule_->steps[step]);
    Complete(step);
    *moved = true;
  }
  if (!ready_long_.empty()) {
    const int step = ready_long_.back();
    ready_long_.pop_back();
    executor_->Execute(schedule_->steps[step]);
    Complete(step);
    *moved = true;
  }
}

void ScheduleRunner::FinishHead(Lane* lane, int64_t bytes) {
  lane->moved += bytes;
  const int step = lane->steps[lane->head];
  if (lane->moved < StepBytes(schedule_->steps[step])) return;
  ++lane->head;
  lane->moved = 0;
  Complete(step);
}

Result<bool> ScheduleRunner::AdvanceSend(Lane* lane) {
  if (!HeadReady(*lane)) return false;
  const Step& step = schedule_->steps[lane->steps[lane->head]];
  struct iovec pieces[kMaxPieces];
  const size_t lead_left = lane->lead_bytes - lane->lead_moved;
  const int first = lead_left > 0 ? 1 : 0;
  pieces[0] = {lane->lead + lane->lead_moved, lead_left};
  const int count =
      first + executor_->Collect(step.src, lane->moved, pieces + first, kMaxPieces - first);
  Result<int64_t> sent = transport_->TrySend((*members_)[lane->peer], pieces, count);
  if (!sent.ok()) return Fail(lane->peer, sent.status());
  const size_t of_lead = std::min(lead_left, static_cast<size_t>(*sent));
  lane->lead_moved += of_lead;
  if (*sent > 0) FinishHead(lane, *sent - static_cast<int64_t>(of_lead));
  return *sent > 0;
}

Result<bool> ScheduleRunner::AdvanceRecv(Lane* lane) {
  if (!HeadReady(*lane)) return false;
  const Step& step = schedule_->steps[lane->steps[lane->head]];
  Result<int64_t> received =
      step.kind == StepKind::kRecv ? RecvPlain(lane, step) : RecvElements(lane, step);
  if (!received.ok()) return Fail(lane->peer, received.status());
  if (*received > 0) FinishHead(lane, *received);
  return *received > 0;
}

Result<int64_t> ScheduleRunner::RecvPlain(Lane* lane, const Step& step) {
  struct iovec pieces[kMaxPieces];
  const int count = executor_->Collect(step.dst, lane->moved, pieces + 1, kMaxPieces - 1);
  return RecvInto(lane, pieces, count);
}

// Receives the missing bytes of the header into pieces[0], then data into pieces[1..count]. The
// result counts only the data.
Result<int64_t> ScheduleRunner::RecvInto(Lane* lane, struct iovec* pieces, int count) {
  const Rank from = (*members_)[lane->peer];
  const size_t missing = lane->lead_bytes - lane->lead_moved;
  if (missing == 0) return transport_->TryRecv(from, pieces + 1, count);
  pieces[0] = {lane->lead + lane->lead_moved, missing};
  Result<int64_t> received = transport_->TryRecv(from, pieces, count + 1);
  if (!received.ok()) return received;
  const size_t of_lead = std::min(missing, static_cast<size_t>(*received));
  lane->lead_moved += of_lead;
  TFRING_RETURN_IF_ERROR(CheckHeader(*lane));
  return *received - static_cast<int64_t>(of_lead);
}

// An error if the header of a receiving lane has come and differs from the expected one.
Status ScheduleRunner::CheckHeader(const Lane& lane) const {
  if (lane.lead_moved < sizeof(LaneHeader)) return OkStatus();
  LaneHeader got;
  std::memcpy(&got, lane.lead, sizeof(got));
  const std::string mismatch = LaneMismatch(lane.header, got, schedule_->algorithm);
  if (mismatch.empty()) return OkStatus();
  return Internal("the data stream from rank " + std::to_string((*members_)[lane.peer]) +
                  " is out of step: " + mismatch);
}

// Receives elements that have to be reduced.
Result<int64_t> ScheduleRunner::RecvElements(Lane* lane, const Step& step) {
  const Rank from = (*members_)[lane->peer];
  const int64_t wanted = StepBytes(step) - lane->moved;
  if (transport_->CanPeek(from)) {
    Result<struct iovec> view = transport_->Peek(from);
    if (!view.ok()) return view.status();
    if (lane->lead_moved < lane->lead_bytes) {
      const size_t part = std::min(view->iov_len, lane->lead_bytes - lane->lead_moved);
      std::memcpy(lane->lead + lane->lead_moved, view->iov_base, part);
      lane->lead_moved += part;
      transport_->Consume(from, static_cast<int64_t>(part));
      TFRING_RETURN_IF_ERROR(CheckHeader(*lane));
      view->iov_base = static_cast<char*>(view->iov_base) + part;
      view->iov_len -= part;
    }
    const int64_t bytes = std::min({static_cast<int64_t>(view->iov_len), wanted, kStagingBytes});
    if (bytes == 0) return bytes;
    TakeReceived(lane, step, static_cast<const char*>(view->iov_base), bytes);
    transport_->Consume(from, bytes);
    return bytes;
  }
  if (staging_.empty()) staging_.resize(kStagingBytes);
  struct iovec pieces[2];
  pieces[1] = {staging_.data(), static_cast<size_t>(std::min(wanted, kStagingBytes))};
  Result<int64_t> received = RecvInto(lane, pieces, 1);
  if (received.ok() && *received > 0) TakeReceived(lane, step, staging_.data(), *received);
  return received;
}

// Takes the next `bytes` of a step, which `lane->moved` does not count yet. A stream may end a part
// within an element: `lane->carry` keeps the element's first bytes, and `lane->moved` counts them.
void ScheduleRunner::TakeReceived(Lane* lane, const Step& step, const char* data, int64_t bytes) {
  const int64_t element = executor_->element_bytes();
  int64_t combined = lane->moved - lane->carried;
  if (lane->carried > 0) {
    const int64_t missing = std::min(element - lane->carried, bytes);
    std::memcpy(lane->carry + lane->carried, data, static_cast<size_t>(missing));
    lane->carried += missing;
    data += missing;
    bytes -= missing;
    if (lane->carried < element) return;
    executor_->TakeReceived(step, combined, lane->carry, element);
    combined += element;
    lane->carried = 0;
  }
  const int64_t whole = bytes / element * element;
  executor_->TakeReceived(step, combined, data, whole);
  lane->carried = bytes - whole;
  std::memcpy(lane->carry, data + whole, static_cast<size_t>(lane->carried));
}

Status ScheduleRunner::Fail(int peer, const Status& status) {
  if (status.code() == StatusCode::kUnavailable) suspect_ = (*members_)[peer];
  return status;
}

Result<bool> ScheduleRunner::Advance() {
  bool moved = false;
  for (Lane& lane : sends_) {
    Result<bool> sent = AdvanceSend(&lane);
    if (!sent.ok()) return sent;
    moved |= *sent;
  }
  for (Lane& lane : recvs_) {
    Result<bool> received = AdvanceRecv(&lane);
    if (!received.ok()) return received;
    data_has_come_ |= *received;
    moved |= *received;
  }
  RunReady(&moved);
  if (moved) {
    watch_.Moved();
    moves_.fetch_add(1, std::memory_order_relaxed);
  }
  return moved;
}

Status ScheduleRunner::Run() {
  while (!done()) {
    if (poison_->load(std::memory_order_acquire)) return Cancelled("interrupted");
    Result<bool> moved = Advance();
    if (!moved.ok()) return moved.status();
    if (*moved || done()) continue;
    TFRING_RETURN_IF_ERROR(WaitForPeers());
  }
  while (transport_->Sending()) {
    if (poison_->load(std::memory_order_acquire)) return Cancelled("interrupted");
    TFRING_RETURN_IF_ERROR(WaitForPeers());
  }
  return OkStatus();
}

}  // namespace tfring
