#include "tests/fakes/nccl/communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <utility>

#include "tests/fakes/nccl/kernel.h"
#include "tests/fakes/nccl/settings.h"

namespace fake_nccl {
namespace {

std::atomic<int> aborting{0};  // calls of ncclCommAbort that have not returned

// At the exit of the process. The real libraries may crash under a thread that is still in them.
__attribute__((destructor)) void AtUnload() {
  if (aborting == 0) return;
  Say("static destructors ran while a thread was in ncclCommAbort");
  std::abort();
}

}  // namespace

Communicator::Communicator(const ncclUniqueId& id, int nranks, int rank, bool blocking,
                           const Device& device)
    : nranks_(nranks),
      rank_(rank),
      blocking_(blocking),
      device_(device),
      rendezvous_(id, nranks, rank) {}

ncclResult_t Communicator::Fail(ncclResult_t error, const std::string& why) {
  SetLastError("rank " + std::to_string(rank_) + ": " + why);
  return error;
}

void Communicator::SetError(ncclResult_t error, const std::string& why) {
  SetLastError("rank " + std::to_string(rank_) + ": " + why);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_ == ncclSuccess) error_ = error;
}

ncclResult_t Communicator::RunInit() {
  const auto go_on = [this] { return !aborted_; };
  Pause pause;
  while (go_on() && nranks_ > 1 && Setting("hang_init") != 0) pause();
  std::string why;
  const auto fault = static_cast<ncclResult_t>(Setting("error_code"));
  ncclResult_t result = fault;
  if (nranks_ == 1 && Setting("fail_alone") == device_.ordinal) {
    why = "fail_alone";
  } else if (nranks_ > 1 && Strikes("fail_init", rank_)) {
    why = "fail_init";
  } else {
    result = rendezvous_.Attach(device_, go_on, &why);
    attached_ = result == ncclSuccess;
  }
  if (attached_ && nranks_ > 1 && Strikes("fail_late", rank_)) {
    result = fault;
    why = "fail_late";
  }
  if (result != ncclSuccess) SetError(result, why);
  const std::lock_guard<std::mutex> lock(mutex_);
  init_done_ = true;
  return result;
}

ncclResult_t Communicator::Init() {
  Count(nranks_ == 1 ? "alone" : "inits");
  if (blocking_) return RunInit();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    job_ = Job::kInit;
    polls_left_ = Setting("in_progress_polls");
  }
  in_init_ = true;
  std::thread([self = shared_from_this()] {
    self->RunInit();
    self->in_init_ = false;
  }).detach();
  return ncclInProgress;
}

void Communicator::LookAtPeers() {
  if (!attached_ || dead_ || Setting("remote_error") == 0) return;
  const std::unique_lock<std::mutex> lock(running_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // the kernel looks
  const int lost = rendezvous_.LostPeer();
  if (lost >= 0) SetError(ncclRemoteError, "connection closed by rank " + std::to_string(lost));
}

// Called with mutex_ not held. Does what a poll of a non-blocking communicator brings forward.
ncclResult_t Communicator::Progress() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (error_ != ncclSuccess) {
    job_ = Job::kNone;
    return error_;
  }
  if (job_ == Job::kNone) return ncclSuccess;
  if (job_ == Job::kInit && !init_done_) return ncclInProgress;
  if (job_ == Job::kGroup && Setting("hang_group") != 0) return ncclInProgress;
  if (job_ == Job::kFinalize && queued_ > 0) return ncclInProgress;
  if (polls_left_ > 0) {
    --polls_left_;
    return ncclInProgress;
  }
  job_ = Job::kNone;
  std::vector<std::vector<Call>> groups = std::exchange(waiting_, {});
  lock.unlock();
  for (std::vector<Call>& calls : groups) {
    const ncclResult_t result = Enqueue(std::move(calls));
    if (result != ncclSuccess) SetError(result, "a kernel could not be launched");
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

ncclResult_t Communicator::AsyncError(ncclResult_t* error) {
  LookAtPeers();
  *error = Progress();
  return ncclSuccess;
}

ncclResult_t Communicator::Ready() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_) return Fail(ncclInvalidArgument, "the communicator was aborted");
  if (error_ != ncclSuccess) return error_;
  if (job_ == Job::kNone) return ncclSuccess;
  Count("early_calls");
  return Fail(ncclInvalidArgument,
              "Attempt to use communicator before the previous operation returned ncclSuccess");
}

ncclResult_t Communicator::Check(Call* call) {
  int ordinal = -1;
  if (!DeviceOfStream(call->stream, &ordinal)) {
    return Fail(ncclUnhandledCudaError, "the stream has no context");
  }
  if (ordinal != device_.ordinal) {
    return Fail(ncclInvalidUsage, "a stream of device " + std::to_string(ordinal) +
                                      ", but the communicator is on " +
                                      std::to_string(device_.ordinal));
  }
  if (!IsDataType(call->dtype)) return Fail(ncclInvalidArgument, "no such datatype");
  if (call->root >= nranks_ || call->root < -1) return Fail(ncclInvalidArgument, "no such root");
  if (call->op > ncclMin) return Fail(ncclInvalidArgument, "no such operator");
  return ncclSuccess;
}

ncclResult_t Communicator::Launch(std::vector<Call> calls) {
  const ncclResult_t ready = Ready();
  if (ready != ncclSuccess) return ready;
  for (Call& call : calls) {
    const ncclResult_t result = Check(&call);
    if (result != ncclSuccess) return result;
    if (call.stream != calls.front().stream) {
      return Fail(ncclInvalidUsage, "several streams in one group: the fake does not do that");
    }
  }
  if (blocking_) return Enqueue(std::move(calls));
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(std::move(calls));
  job_ = Job::kGroup;
  polls_left_ = Setting("in_progress_polls");
  return ncclInProgress;
}

ncclResult_t Communicator::Enqueue(std::vector<Call> calls) {
  void* stream = calls.front().stream;
  void* kernel = MakeKernel(shared_from_this(), std::move(calls));
  stream_ = stream;
  ++queued_;
  if (fake_nccl::Enqueue(stream, RunKernel, kernel)) return ncclSuccess;
  --queued_;
  DropKernel(kernel);
  return Fail(ncclUnhandledCudaError, "the driver refused the kernel");
}

ncclResult_t Communicator::Finalize() {
  const ncclResult_t ready = Ready();
  if (ready != ncclSuccess) return ready;
  if (!blocking_) {
    const std::lock_guard<std::mutex> lock(mutex_);
    job_ = Job::kFinalize;
    polls_left_ = Setting("in_progress_polls");
    return ncclInProgress;
  }
  Pause pause;
  while (queued_ > 0 && !aborted_) pause();
  return ncclSuccess;
}

ncclResult_t Communicator::Destroy() {
  if (nranks_ > 1) Count("destroys");
  Pause pause;
  while (queued_ > 0 && !aborted_) pause();
  while (in_init_) pause();
  rendezvous_.Leave(Presence::kLeft);
  return ncclSuccess;
}

void Communicator::Abort() {
  Count("aborts");
  ++aborting;
  Pause pause;
  while (Setting("hang_abort") != 0) pause();  // and kernels spin on
  aborted_ = true;
  while (in_init_) pause();
  // As NCCL's own, which waits for its stream: kernels that have not begun do nothing, but only
  // once the stream has come to them. After a sticky error it never does.
  int ordinal = -1;
  while (running_ > 0 || (queued_ > 0 && DeviceOfStream(stream_, &ordinal))) pause();
  if (!dead_) rendezvous_.Leave(Presence::kAborted);
  --aborting;
}

void Communicator::PlayDead() {
  dead_ = true;
  if (attached_) rendezvous_.PlayDead();
}

bool Communicator::GoOn() {
  thread_local int looks = 0;
  Pause pause;
  while (dead_ && !aborted_) pause();
  if (aborted_) return false;
  if (++looks % 64 != 0 || Setting("remote_error") == 0) return true;
  const int lost = rendezvous_.LostPeer();
  if (lost >= 0) SetError(ncclRemoteError, "connection closed by rank " + std::to_string(lost));
  return true;
}

void Communicator::Spin() {
  Pause pause;
  while (GoOn()) pause();
}

}  // namespace fake_nccl
