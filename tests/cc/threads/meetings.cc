#include "tests/cc/threads/meetings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "ops/runtime/backend/collective_queue.h"
#include "tests/cc/threads/scheduler.h"

namespace tfring::threads {
namespace {

std::string Of(Rank rank) { return "rank " + std::to_string(rank); }

}  // namespace

class Meetings::MeetingBackend final : public CollectiveBackend {
 public:
  MeetingBackend(Meetings* meetings, Rank rank, CompletionSink sink, ThreadPool* pool)
      : meetings_(meetings),
        rank_(rank),
        queue_({[this](const Collective& collective, TimePoint until) {
                  return meetings_->Meet(rank_, collective, until, aborted_);
                },
                [this] {
                  std::lock_guard<std::mutex> lock(meetings_->mutex_);
                  meetings_->changed_.notify_all();
                }},
               std::move(sink), &aborted_, pool) {}
  const char* name() const override { return "meetings"; }
  void Submit(Collective collective) override {
    meetings_->OnSubmit(rank_, collective);
    queue_.Submit(std::move(collective));
  }
  void Abort(Status why) override { queue_.Abort(std::move(why)); }
  int64_t bytes_sent() const override { return 0; }
  int64_t wakeups() const override { return 0; }

 private:
  Meetings* const meetings_;
  const Rank rank_;
  std::atomic<bool> aborted_{false};
  CollectiveQueue queue_;
};

class Meetings::WatchedControl final : public ControlTransport {
 public:
  WatchedControl(Meetings* meetings, Rank rank, std::unique_ptr<ControlTransport> control)
      : meetings_(meetings), rank_(rank), control_(std::move(control)) {}
  void Send(Rank to, std::string frame) override {
    meetings_->OnFrame(rank_, frame, true);
    control_->Send(to, std::move(frame));
  }
  void Wait(TimePoint deadline, std::vector<ControlEvent>* events) override {
    control_->Wait(deadline, events);
    for (const ControlEvent& event : *events) {
      if (event.kind == ControlEvent::Kind::kFrame) meetings_->OnFrame(rank_, event.frame, false);
    }
  }
  void Wake() override { control_->Wake(); }
  void Close(TimePoint deadline) override { control_->Close(deadline); }

 private:
  Meetings* const meetings_;
  const Rank rank_;
  const std::unique_ptr<ControlTransport> control_;
};

std::unique_ptr<CollectiveBackend> Meetings::Backend(Rank rank, CompletionSink sink,
                                                     ThreadPool* pool) {
  return std::make_unique<MeetingBackend>(this, rank, std::move(sink), pool);
}

std::unique_ptr<ControlTransport> Meetings::Watched(Rank rank,
                                                    std::unique_ptr<ControlTransport> control) {
  return std::make_unique<WatchedControl>(this, rank, std::move(control));
}

// A rank says with kFrozen how many batches it has entered, and enters no more; rank 0, which sends
// itself nothing, with kUnlock how many the first of all has.
void Meetings::OnFrame(Rank rank, const std::string& bytes, bool sent) {
  const Result<Frame> frame = DecodeFrame(bytes);
  if (!frame.ok()) Fail("a frame is wrong: " + frame.status().ToString());
  const bool begins = frame->type == FrameType::kLock;
  const bool freezes = sent && frame->type == FrameType::kFrozen;
  const bool ends = frame->type == FrameType::kUnlock;
  if (!begins && !freezes && !ends) return;
  std::lock_guard<std::mutex> lock(mutex_);
  OfRank& of = ranks_[static_cast<size_t>(rank)];
  if (begins && of.lock != frame->lock.id) {
    of.lock = frame->lock.id;
    of.enters = UINT64_MAX;
  } else if (frame->lock.id == of.lock && (freezes || ends)) {
    of.enters = std::min(of.enters, freezes ? frame->lock.entered : frame->lock.high);
  }
}

void Meetings::OnSubmit(Rank rank, const Collective& collective) {
  std::lock_guard<std::mutex> lock(mutex_);
  OfRank& of = ranks_[static_cast<size_t>(rank)];
  if (collective.sequence <= of.submitted) {
    Fail(Of(rank) + " submits plan " + std::to_string(collective.sequence) + " after plan " +
         std::to_string(of.submitted));
  }
  of.submitted = collective.sequence;
  of.waiting.push_back(collective.sequence);
  if (!collective.locked || collective.is_void) return;
  const uint64_t number = collective.sequence - of.lock - 1;
  if (of.lock == 0 || number >= of.enters) {
    Fail(Of(rank) + " begins batch " + std::to_string(number) + " of a lock that was over after " +
         std::to_string(of.enters));
  }
  ++of.batches;
  fused_ += collective.buffers.size() > 1 ? 1 : 0;
  changed_.notify_all();
}

// `mutex_` is held.
void Meetings::Begin(Rank rank, const Collective& collective) {
  OfRank& of = ranks_[static_cast<size_t>(rank)];
  if (of.waiting.empty() || collective.sequence != of.waiting.front()) {
    Fail(Of(rank) + " begins plan " + std::to_string(collective.sequence) + ", which is not next");
  }
  of.waiting.pop_front();
  Meeting& meeting = meetings_[collective.sequence];
  meeting.members.insert(collective.members.begin(), collective.members.end());
  meeting.arrived.insert(rank);
  meeting.recalled = meeting.recalled || collective.is_void;
  if (collective.is_void) return;
  std::string what = collective.what;
  for (const TensorBuffer& buffer : collective.buffers) {
    what += ", " + std::to_string(buffer.input_bytes);
  }
  if (meeting.what.empty()) {
    meeting.what = what;
    for (const TensorBuffer& buffer : collective.buffers) {
      meeting.sums.emplace_back(static_cast<size_t>(buffer.input_bytes) / sizeof(float));
    }
  }
  if (meeting.what != what) {
    Fail("plan " + std::to_string(collective.sequence) + " is " + what + " on " + Of(rank) +
         " and " + meeting.what + " on another");
  }
  for (size_t i = 0; i < meeting.sums.size(); ++i) {
    const auto* input = static_cast<const float*>(collective.buffers[i].input);
    for (float& sum : meeting.sums[i]) sum += *input++;
  }
}

std::optional<Completion> Meetings::Meet(Rank rank, const Collective& collective, TimePoint until,
                                         const std::atomic<bool>& aborted) {
  std::unique_lock<std::mutex> lock(mutex_);
  OfRank& of = ranks_[static_cast<size_t>(rank)];
  if (std::exchange(of.running, true)) Fail(Of(rank) + " is at two plans at once");
  if (std::exchange(of.left, 0) != collective.sequence) Begin(rank, collective);
  Meeting& meeting = meetings_[collective.sequence];
  changed_.notify_all();
  Rank lost = kNoRank;
  const auto over = [&] {
    for (Rank member : meeting.members) {
      if (ranks_[static_cast<size_t>(member)].lost) lost = member;
    }
    return aborted || lost != kNoRank || meeting.arrived.size() == meeting.members.size();
  };
  if (until == kNever) {
    changed_.wait(lock, over);
  } else if (!changed_.wait_until(
                 lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until)),
                 over)) {
    of.running = false;
    of.left = collective.sequence;
    return std::nullopt;
  }
  of.running = false;
  Completion completion{collective.sequence, OkStatus(), kNoRank};
  if (lost != kNoRank) {
    completion.status = Unavailable(Of(lost) + ": connection closed");
    completion.suspect = lost;
  } else if (meeting.arrived.size() < meeting.members.size()) {
    completion.status = Cancelled("aborted");
  } else if (meeting.recalled) {
    completion.recalled = true;
  } else {
    for (size_t i = 0; i < meeting.sums.size(); ++i) {
      std::copy(meeting.sums[i].begin(), meeting.sums[i].end(),
                static_cast<float*>(collective.buffers[i].output));
    }
  }
  return completion;
}

void Meetings::Lose(Rank rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  ranks_[static_cast<size_t>(rank)].lost = true;
  changed_.notify_all();
}

void Meetings::WaitForBatches(Rank rank, int count) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock,
                [&] { return stopped_ || ranks_[static_cast<size_t>(rank)].batches >= count; });
}

void Meetings::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

bool Meetings::InLock(Rank rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  const OfRank& of = ranks_[static_cast<size_t>(rank)];
  return of.lock != 0 && of.enters == UINT64_MAX;
}

}  // namespace tfring::threads
