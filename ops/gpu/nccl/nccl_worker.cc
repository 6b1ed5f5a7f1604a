#include "ops/gpu/nccl/nccl_worker.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <utility>

#include "ops/gpu/cuda/expendable_thread.h"
#include "ops/gpu/cuda/stream.h"
#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

constexpr int kMaxLaunched = 32;
constexpr auto kWatchPeriod = std::chrono::milliseconds(100);

int64_t BytesOf(const NcclProgram& program, const Collective& collective) {
  const int64_t element =
      Traits(collective.kind).reduces ? DataTypeSize(collective.dtype) : int64_t{1};
  int64_t bytes = 0;
  for (const NcclCall& call : program.calls) {
    if (call.kind != NcclCall::Kind::kRecv) bytes += call.count * element;
  }
  return bytes;
}

Completion FailureOf(Status status) {
  Completion failure;
  failure.suspects_unknown_peer = status.code() == StatusCode::kUnavailable;
  failure.status = std::move(status);
  return failure;
}

}  // namespace

NcclWorker::NcclWorker(NcclOptions options, CompletionSink sink)
    : options_(std::move(options)), table_(std::move(sink), options_.config.heartbeat_timeout) {}

Status NcclWorker::Start() {
  const Status status = StartExpendable([self = shared_from_this()] { self->Loop(); });
  std::lock_guard<std::mutex> lock(mutex_);
  started_ = status.ok();
  return status;
}

void NcclWorker::Submit(Collective collective) {
  // No data moves, so the members need not meet.
  if (collective.buffers.empty()) {
    table_.Add(collective);
    return table_.End(collective.sequence, Completion());
  }
  Item item;
  std::shared_ptr<Group>& group = groups_[collective.members];
  if (group == nullptr) {
    group = std::make_shared<Group>();
    group->members = collective.members;
    if (collective.members.size() > 1) {
      item.meeting = options_.cpu_order->Reserve();
      item.confirmation = options_.cpu_order->Reserve();
    }
  }
  item.group = group;
  const Group::State state = group->state.load(std::memory_order_acquire);
  if (state == Group::State::kNccl) {
    Result<NcclProgram> program = MakeNcclProgram(collective, group->result.abilities);
    if (!program.ok()) return options_.cpu_order->Reserve()->Stage(std::move(collective));
    item.program = std::move(*program);
  } else if (state == Group::State::kOpen || !group->result.insists) {
    item.staging = options_.cpu_order->Reserve();
  }
  table_.Add(collective);
  item.collective = std::move(collective);
  Push(std::move(item));
}

// The next collective of these members makes a new group.
void NcclWorker::Disband(const std::vector<Rank>& members) {
  const auto it = groups_.find(members);
  if (it == groups_.end()) return;
  Item item;
  item.group = std::move(it->second);
  item.disbands = true;
  groups_.erase(it);
  Push(std::move(item));
}

void NcclWorker::Push(Item item) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(item));
  }
  changed_.notify_all();
}

bool NcclWorker::Next(Item* item) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopping()) {
    parked_ = true;
    changed_.notify_all();
  }
  while (queue_.empty()) {
    if (closing_) return false;
    if (table_.launched() > 0 && !stopping()) {
      changed_.wait_for(lock, kWatchPeriod);
      lock.unlock();
      Watch();
      lock.lock();
    } else {
      changed_.wait(lock);
    }
    wakeups_.fetch_add(1, std::memory_order_relaxed);
    parked_ = parked_ || stopping();
    if (parked_) changed_.notify_all();
  }
  *item = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

// Runs on the launch thread, which alone uses the communicators.
void NcclWorker::Watch() {
  const Status broken = device_ != nullptr ? device_->broken() : OkStatus();
  if (!broken.ok()) return Fail(FailureOf(broken), false);
  for (const auto& communicator : communicators_) {
    const Status status = communicator->AsyncError();
    if (!status.ok()) return Fail(FailureOf(CauseOf(status)), false);
  }
}

// NCCL says only that CUDA failed. A broken device reports the cause at the next call.
Status NcclWorker::CauseOf(Status status) {
  if (launcher_ == nullptr) return status;
  (void)device_->Record(launcher_->stream());
  const Status broken = device_->broken();
  return broken.ok() ? status : broken;
}

void NcclWorker::Loop() {
  pthread_setname_np(pthread_self(), "tfring-nccl");
  Item item;
  while (Next(&item)) {
    const uint64_t sequence = item.collective.sequence;
    try {
      Handle(&item);
    } catch (const std::exception& error) {
      Fail(FailureOf(Internal("rank " + std::to_string(options_.self) +
                              " has no memory to run collectives on its GPU (" + error.what() +
                              "); use smaller tensors or buckets")),
           false);
      table_.Abandon(sequence);
    }
    if (table_.failure()) KeepPlaces(&item);
    item = Item();
  }
  if (!stopping()) DestroyCommunicators();
  launcher_.reset();
  kept_places_.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  parked_ = true;
  ended_ = true;
  changed_.notify_all();
}

// Other members may run a collective that this rank skips. Later work on this rank's CPU backend
// would then match it wrongly. The abort after every failure ends the CPU backend's collectives.
void NcclWorker::KeepPlaces(Item* item) {
  for (std::unique_ptr<CpuPlace>* place : {&item->meeting, &item->confirmation, &item->staging}) {
    if (*place != nullptr) kept_places_.push_back(std::move(*place));
  }
}

// Sets up the device of this rank's first collective, our stream on it and the waiter.
Status NcclWorker::Prepare(const Collective& collective) {
  if (launcher_ != nullptr) return OkStatus();
  if (collective.device_calls.empty()) return Internal(collective.what + " has no device");
  std::shared_ptr<CudaDevice> device = CudaStream::Of(collective.device_calls.front()).device();
  Result<std::unique_ptr<NcclLauncher>> launcher = NcclLauncher::Make(device, options_.pack_images);
  if (!launcher.ok()) return launcher.status();
  launcher_ = std::move(*launcher);
  auto waiter = std::make_unique<DeviceWaiter>(device);
  std::lock_guard<std::mutex> lock(mutex_);
  device_ = std::move(device);
  waiter_ = std::move(waiter);
  return OkStatus();
}

void NcclWorker::Handle(Item* item) {
  if (item->disbands) {
    const Status status = Destroy(item->group.get());
    if (!status.ok() && !table_.failure()) Fail(FailureOf(CauseOf(status)), false);
    return;
  }
  const uint64_t sequence = item->collective.sequence;
  Status status = table_.failure() ? Cancelled("stopped") : OkStatus();
  if (status.ok()) status = Prepare(item->collective);
  Group* const group = item->group.get();
  if (status.ok() && group->state == Group::State::kOpen) status = Meet(item);
  if (status.ok() && group->state == Group::State::kCpu) return EndWithout(item);
  if (status.ok() && !item->program) {
    Result<NcclProgram> program = MakeNcclProgram(item->collective, group->result.abilities);
    if (!program.ok()) return EndWithout(item);
    item->program = std::move(*program);
  }
  if (status.ok()) {
    // It is not staged, so the CPU backend's collectives need not wait for it.
    item->meeting.reset();
    item->confirmation.reset();
    item->staging.reset();
  }
  if (status.ok() && !WaitForRoom()) status = Cancelled("stopped");
  if (!status.ok()) {
    if (!table_.failure()) Fail(FailureOf(CauseOf(status)), false);
    return table_.End(sequence, Completion());
  }
  Launch(item);
}

// Ends a collective that NCCL does not run, as all members know by now.
void NcclWorker::EndWithout(Item* item) {
  const uint64_t sequence = item->collective.sequence;
  const MeetingResult& result = item->group->result;
  if (!result.uses_nccl && result.insists) {
    Completion completion;
    completion.status =
        Unimplemented(RanksText(item->group->members) + " cannot use NCCL, and " +
                      "TFRING_GPU_OPERATIONS=nccl allows nothing else: " + result.reason +
                      ". TFRING_GPU_OPERATIONS=auto would copy tensors through CPU memory");
    return table_.End(sequence, std::move(completion));
  }
  if (table_.Release(sequence)) item->staging->Stage(std::move(item->collective));
}

// Waits for room in flight. False after a failure.
bool NcclWorker::WaitForRoom() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (table_.launched() >= kMaxLaunched && !stopping()) {
    changed_.wait_for(lock, kWatchPeriod);
    lock.unlock();
    Watch();
    lock.lock();
  }
  return !stopping();
}

void NcclWorker::Launch(Item* item) {
  const Collective& collective = item->collective;
  const uint64_t sequence = collective.sequence;
  const Status status =
      launcher_->Launch(collective, *item->program, item->group->communicator.get());
  if (status.ok()) {
    bytes_.fetch_add(BytesOf(*item->program, collective), std::memory_order_relaxed);
    table_.Launched(sequence);
  } else {
    Fail(FailureOf(stopping() ? status : CauseOf(status)), false);
  }
  // The device uses these: tensors, the present scratch memory, and the launcher's kernels.
  struct InUse {
    std::vector<DeviceCall> calls;
    std::shared_ptr<void> scratch;
    std::shared_ptr<NcclLauncher> launcher;
  };
  auto used = std::make_shared<InUse>(
      InUse{std::move(item->collective.device_calls), launcher_->scratch(), launcher_});
  waiter_->After(
      launcher_->stream(),
      [self = shared_from_this(), sequence](const DeviceOutcome& outcome) {
        if (!outcome.status.ok()) self->Fail(FailureOf(outcome.status), false);
        self->table_.End(sequence, Completion());
        // Notify under the lock: the launch thread may be about to wait for room.
        std::lock_guard<std::mutex> lock(self->mutex_);
        self->changed_.notify_all();
      },
      std::move(used));
}

}  // namespace tfring
