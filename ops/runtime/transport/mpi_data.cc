#include "ops/runtime/transport/mpi_data.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/transport/socket_util.h"

namespace tfring {
namespace {

// Slots per stream and direction. With several, the sender fills one while others are in flight.
constexpr size_t kSlots = 4;
constexpr int64_t kMaxChunkBytes = 256 << 10;
constexpr int64_t kMinChunkBytes = 16 << 10;
constexpr int64_t kBudget = 128 << 20;  // for all slots, if all ranks exchange data with each other
// A wait first polls this often, yielding in between. Then it sleeps between polls.
constexpr int kTurnsWithoutSleep = 64;
constexpr Duration kFirstPause = kMillisecond / 50;
constexpr Duration kLongestPause = kMillisecond;
// A cancelled receive ends at once unless a message has begun to arrive.
constexpr int kTestsOfCancelled = 16;

int64_t ChunkBytesFor(int ranks) {
  int64_t bytes = kMaxChunkBytes;
  while (bytes > kMinChunkBytes && bytes * 2 * static_cast<int64_t>(kSlots) * ranks > kBudget) {
    bytes /= 2;
  }
  return bytes;
}

Status Unusable(MpiFunctions::State state) {
  switch (state) {
    case MpiFunctions::kReady:
      return OkStatus();
    case MpiFunctions::kNotStarted:
      return FailedPrecondition("MPI has not been started in this process");
    case MpiFunctions::kEnded:
      return FailedPrecondition(
          "MPI has been finalised: call MPI_Finalize after tfring.shutdown()");
    case MpiFunctions::kOneThread:
      return FailedPrecondition(
          "MPI was started without MPI_THREAD_MULTIPLE, and tfring calls it from a thread of its "
          "own: leave mpi4py.rc.thread_level at \"multiple\", or call MPI_Init_thread with it");
  }
  return OkStatus();
}

// Sleeps until `fd` or `also` is readable, at most `pause`. Returns true if one is.
bool SleepOn(int fd, int also, Duration pause) {
  struct pollfd polled[2] = {{fd, POLLIN, 0}, {also, POLLIN, 0}};  // ignored if -1
  struct timespec time{};
  time.tv_nsec = static_cast<long>(pause);
  return ppoll(polled, 2, &time, nullptr) > 0;
}

// Memory that MPI may still use when a transport ends. Never freed.
void KeepForEver(std::vector<std::unique_ptr<uint8_t[]>> memory) {
  for (std::unique_ptr<uint8_t[]>& one : memory) (void)one.release();
}

}  // namespace

Result<std::unique_ptr<MpiDataTransport>> MpiDataTransport::Create(const MpiFunctions* mpi,
                                                                   int communicator, Rank self,
                                                                   int size) {
  TFRING_RETURN_IF_ERROR(Unusable(mpi->state()));
  int rank = -1;
  int ranks = 0;
  void* opened = mpi->open(communicator, &rank, &ranks);
  if (opened == nullptr) {
    return FailedPrecondition("MPI has no communicator number " + std::to_string(communicator));
  }
  if (rank != self || ranks != size) {
    return Internal("rank " + std::to_string(self) + " of " + std::to_string(size) + " is rank " +
                    std::to_string(rank) + " of " + std::to_string(ranks) +
                    " in the communicator for its data: this is a defect of tfring");
  }
  Result<UniqueFd> wake = NewEventFd();
  if (!wake.ok()) return wake.status();
  return std::unique_ptr<MpiDataTransport>(
      new MpiDataTransport(mpi, opened, self, size, std::move(*wake)));
}

MpiDataTransport::MpiDataTransport(const MpiFunctions* mpi, void* communicator, Rank self, int size,
                                   UniqueFd wake)
    : mpi_(mpi),
      communicator_(communicator),
      self_(self),
      size_(size),
      chunk_bytes_(ChunkBytesFor(size)),
      wake_(std::move(wake)),
      out_(static_cast<size_t>(size)),
      in_(static_cast<size_t>(size)) {}

MpiDataTransport::~MpiDataTransport() { Close(0); }

Status MpiDataTransport::Check(int code, const char* during, Rank peer) const {
  if (code == 0) return OkStatus();
  char text[512] = "";
  mpi_->error_text(code, text, sizeof(text));
  return Unavailable("rank " + std::to_string(self_) + ": MPI failed while it was " + during +
                     " rank " + std::to_string(peer) + ": " + text);
}

void MpiDataTransport::MakeSlots(Lane* lane) const {
  lane->slots.resize(kSlots);
  for (Slot& slot : lane->slots) {
    slot.memory.reset(new uint8_t[static_cast<size_t>(chunk_bytes_)]);
  }
}

// Frees slots whose messages the peer has taken.
void MpiDataTransport::Reap(Rank to, Lane* lane) {
  while (lane->busy > 0 && lane->broken.ok()) {
    bool done = false;
    int bytes = 0;
    lane->broken =
        Check(mpi_->test(&lane->slots[lane->first].request, &done, &bytes), "sending to", to);
    if (!done) return;
    lane->first = (lane->first + 1) % kSlots;
    --lane->busy;
  }
}

Result<int64_t> MpiDataTransport::TrySend(Rank to, const struct iovec* iov, int count) {
  TFRING_RETURN_IF_ERROR(Unusable(mpi_->state()));
  Lane& lane = out_[static_cast<size_t>(to)];
  if (lane.slots.empty()) MakeSlots(&lane);
  Reap(to, &lane);
  if (!lane.broken.ok()) return lane.broken;
  int64_t moved = 0;
  int part = 0;
  size_t of_part = 0;  // bytes of iov[part] that are taken
  while (lane.busy < kSlots) {
    Slot& slot = lane.slots[(lane.first + lane.busy) % kSlots];
    size_t filled = 0;
    while (part < count && filled < static_cast<size_t>(chunk_bytes_)) {
      const size_t n =
          std::min(iov[part].iov_len - of_part, static_cast<size_t>(chunk_bytes_) - filled);
      std::memcpy(slot.memory.get() + filled, static_cast<char*>(iov[part].iov_base) + of_part, n);
      filled += n;
      of_part += n;
      if (of_part < iov[part].iov_len) break;
      ++part;
      of_part = 0;
    }
    if (filled == 0) break;
    const int code =
        mpi_->send(communicator_, slot.memory.get(), static_cast<int>(filled), to, &slot.request);
    lane.broken = Check(code, "sending to", to);
    if (!lane.broken.ok()) return lane.broken;
    if (lane.busy++ == 0) sending_to_.push_back(to);
    moved += static_cast<int64_t>(filled);
  }
  bytes_sent_.fetch_add(moved, std::memory_order_relaxed);
  return moved;
}

Status MpiDataTransport::Post(Rank from, Lane* lane, size_t slot) {
  Slot& into = lane->slots[slot];
  return Check(mpi_->receive(communicator_, into.memory.get(), static_cast<int>(chunk_bytes_), from,
                             &into.request),
               "receiving from", from);
}

// Looks for new messages once everything that arrived before is read.
Status MpiDataTransport::Listen(Rank from, Lane* lane) {
  if (!lane->broken.ok() || lane->arrived > 0) return lane->broken;
  if (lane->slots.empty()) {
    MakeSlots(lane);
    for (size_t i = 0; i < kSlots && lane->broken.ok(); ++i) lane->broken = Post(from, lane, i);
    TFRING_RETURN_IF_ERROR(lane->broken);
  }
  bool done = false;
  int bytes = 0;
  lane->broken =
      Check(mpi_->test(&lane->slots[lane->first].request, &done, &bytes), "receiving from", from);
  if (done) lane->arrived = bytes;
  return lane->broken;
}

Result<struct iovec> MpiDataTransport::Peek(Rank from) {
  TFRING_RETURN_IF_ERROR(Unusable(mpi_->state()));
  Lane& lane = in_[static_cast<size_t>(from)];
  TFRING_RETURN_IF_ERROR(Listen(from, &lane));
  return iovec{lane.slots[lane.first].memory.get() + lane.used,
               static_cast<size_t>(lane.arrived - lane.used)};
}

void MpiDataTransport::Consume(Rank from, int64_t bytes) {
  Lane& lane = in_[static_cast<size_t>(from)];
  lane.used += bytes;
  if (lane.used < lane.arrived || lane.arrived == 0) return;
  lane.broken = Post(from, &lane, lane.first);
  lane.first = (lane.first + 1) % kSlots;
  lane.arrived = 0;
  lane.used = 0;
}

Result<int64_t> MpiDataTransport::TryRecv(Rank from, const struct iovec* iov, int count) {
  int64_t moved = 0;
  for (int i = 0; i < count; ++i) {
    size_t done = 0;
    while (done < iov[i].iov_len) {
      Result<struct iovec> view = Peek(from);
      if (!view.ok()) return view.status();
      const size_t n = std::min(view->iov_len, iov[i].iov_len - done);
      if (n == 0) return moved;
      std::memcpy(static_cast<char*>(iov[i].iov_base) + done, view->iov_base, n);
      Consume(from, static_cast<int64_t>(n));
      done += n;
      moved += static_cast<int64_t>(n);
    }
  }
  return moved;
}

bool MpiDataTransport::Sending() {
  if (sending_to_.empty()) return false;
  if (mpi_->state() != MpiFunctions::kReady) return false;
  const auto is_out = [this](Rank to) {
    Lane& lane = out_[static_cast<size_t>(to)];
    Reap(to, &lane);
    return lane.busy == 0;
  };
  sending_to_.erase(std::remove_if(sending_to_.begin(), sending_to_.end(), is_out),
                    sending_to_.end());
  return !sending_to_.empty();
}

bool MpiDataTransport::Unacknowledged(Rank peer) const {
  return out_[static_cast<size_t>(peer)].busy > 0;
}

// Returns whether a wait may end. Also advances the sends.
bool MpiDataTransport::Ready(const WaitSet& what) {
  if (interrupted_.load(std::memory_order_acquire)) return true;
  if (mpi_->state() != MpiFunctions::kReady) return true;
  if (!Sending() && what.sent) return true;
  for (Rank from : what.readable) {
    Lane& lane = in_[static_cast<size_t>(from)];
    if (!Listen(from, &lane).ok() || lane.arrived > 0) return true;
  }
  return std::any_of(what.writable.begin(), what.writable.end(), [this](Rank to) {
    const Lane& lane = out_[static_cast<size_t>(to)];
    return lane.busy < kSlots || !lane.broken.ok();
  });
}

std::optional<BrokenStream> MpiDataTransport::FirstBroken(const std::vector<Rank>& peers) const {
  for (Rank peer : peers) {
    const Status& broken = out_[static_cast<size_t>(peer)].broken;
    if (!broken.ok()) return BrokenStream{peer, broken};
  }
  return std::nullopt;
}

std::optional<BrokenStream> MpiDataTransport::Wait(const WaitSet& what) {
  Duration pause = kFirstPause;
  for (int turn = 0; !Ready(what); ++turn) {
    std::optional<BrokenStream> broken = FirstBroken(sending_to_);
    if (broken) return broken;
    const TimePoint now = MonotonicNow();
    if (now >= what.deadline) break;
    if (turn < kTurnsWithoutSleep) {
      (void)sched_yield();
      continue;
    }
    if (SleepOn(wake_.get(), what.also_readable, std::min(pause, what.deadline - now))) break;
    pause = std::min(2 * pause, kLongestPause);
  }
  return std::nullopt;
}

void MpiDataTransport::Interrupt() {
  interrupted_.store(true, std::memory_order_release);
  SignalEventFd(wake_);
}

// Cancels the open receives. False if one of them cannot end, or holds bytes that nobody has read.
bool MpiDataTransport::EndReceives(TimePoint deadline) {
  bool all = true;
  for (Lane& lane : in_) {
    all &= lane.broken.ok() && lane.arrived == 0;
    for (Slot& slot : lane.slots) {
      if (slot.request == 0) continue;
      bool done = mpi_->cancel(&slot.request) != 0;
      int bytes = 0;
      for (int i = 0; !done && (i < kTestsOfCancelled || MonotonicNow() < deadline); ++i) {
        if (mpi_->test(&slot.request, &done, &bytes) != 0) break;
        if (!done && i >= kTestsOfCancelled) (void)SleepOn(-1, -1, kFirstPause);
      }
      all &= slot.request == 0 && bytes < 0;
    }
  }
  return all;
}

void MpiDataTransport::Close(TimePoint deadline) {
  if (communicator_ == nullptr) return;
  const bool usable = mpi_->state() == MpiFunctions::kReady;
  while (usable && Sending() && !FirstBroken(sending_to_) && MonotonicNow() < deadline) {
    (void)SleepOn(-1, -1, kFirstPause);
  }
  const bool received = usable && EndReceives(deadline);
  // If any request is still open, a later communicator could get its message.
  if (received && sending_to_.empty()) (void)mpi_->close(communicator_);
  communicator_ = nullptr;
  std::vector<std::unique_ptr<uint8_t[]>> used_by_mpi;
  for (std::vector<Lane>* lanes : {&in_, &out_}) {
    for (Lane& lane : *lanes) {
      for (Slot& slot : lane.slots) {
        if (slot.request != 0) used_by_mpi.push_back(std::move(slot.memory));
      }
    }
  }
  KeepForEver(std::move(used_by_mpi));
}

}  // namespace tfring
