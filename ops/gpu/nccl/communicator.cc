#include "ops/gpu/nccl/communicator.h"

#include <chrono>
#include <thread>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

using Kind = NcclCall::Kind;

// NCCL finishes a group in microseconds, a communicator in seconds.
class Pause {
 public:
  void operator()() {
    if (++times_ < 200) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(times_ < 2000 ? 50 : 1000));
    }
  }

 private:
  int times_ = 0;
};

Status Stopped() { return Cancelled("NCCL was stopped"); }

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<const NcclLibrary> library,
                                   std::vector<Rank> members, const std::atomic<bool>* stop)
    : library_(std::move(library)), members_(std::move(members)), stop_(stop) {}

Status NcclCommunicator::Check(NcclResult result, const std::string& what) {
  lost_peer_ = lost_peer_ || result == NcclResult::kRemoteError;
  return NcclStatus(*library_, result, what + " of " + RanksText(members_), handle_);
}

// Waits until NCCL has finished the operation it began.
Status NcclCommunicator::Finish(NcclResult result, const std::string& what, TimePoint deadline) {
  Pause pause;
  while (true) {
    TFRING_RETURN_IF_ERROR(Check(result, what));
    NcclResult state = NcclResult::kSuccess;
    if (stop_->load(std::memory_order_acquire)) return Stopped();
    TFRING_RETURN_IF_ERROR(Check(library_->call.CommGetAsyncError(handle_, &state), what));
    if (state == NcclResult::kSuccess) return OkStatus();
    result = state;
    if (MonotonicNow() >= deadline) return DeadlineExceeded(what + " of " + RanksText(members_));
    pause();
  }
}

Status NcclCommunicator::Init(const NcclUniqueId& id, int self, Duration limit) {
  NcclConfig config;
  config.blocking = 0;
  const std::string what = "ncclCommInitRankConfig";
  NcclComm handle = nullptr;
  const NcclResult result = library_->call.CommInitRankConfig(
      &handle, static_cast<int>(members_.size()), id, self, &config);
  handle_ = handle;
  if (handle == nullptr) {
    const Status status = Check(result, what);
    return status.ok() ? Internal(what + " gave no communicator") : status;
  }
  Status status = Finish(result, what, After(MonotonicNow(), limit));
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return DeadlineExceeded("NCCL made no communicator of " + RanksText(members_) + " within " +
                          SecondsText(limit) +
                          "; NCCL_DEBUG=INFO shows what it waits for, TFRING_GPU_OPERATIONS=host "
                          "goes without it");
}

Status NcclCommunicator::Issue(const NcclCall& call, const NcclProgram& program,
                               const PlaceResolver& at, CudaStreamHandle stream) {
  const NcclFunctions& nccl = library_->call;
  const int type = static_cast<int>(program.type);
  const int op = static_cast<int>(program.op);
  const size_t count = static_cast<size_t>(call.count);
  const void* from = call.kind == Kind::kRecv ? nullptr : at(call.from);
  void* to = call.kind == Kind::kSend ? nullptr : at(call.to);
  switch (call.kind) {
    case Kind::kAllReduce:
      return Check(nccl.AllReduce(from, to, count, type, op, handle_, stream), "ncclAllReduce");
    case Kind::kReduce:
      return Check(nccl.Reduce(from, to, count, type, op, call.peer, handle_, stream),
                   "ncclReduce");
    case Kind::kBroadcast:
      return Check(nccl.Broadcast(from, to, count, type, call.peer, handle_, stream),
                   "ncclBroadcast");
    case Kind::kAllGather:
      return Check(nccl.AllGather(from, to, count, type, handle_, stream), "ncclAllGather");
    case Kind::kReduceScatter:
      return Check(nccl.ReduceScatter(from, to, count, type, op, handle_, stream),
                   "ncclReduceScatter");
    case Kind::kSend:
      return Check(nccl.Send(from, count, type, call.peer, handle_, stream), "ncclSend");
    case Kind::kRecv:
      break;
  }
  return Check(nccl.Recv(to, count, type, call.peer, handle_, stream), "ncclRecv");
}

Status NcclCommunicator::Enqueue(const NcclProgram& program, const PlaceResolver& at,
                                 CudaStreamHandle stream) {
  if (stop_->load(std::memory_order_acquire)) return Stopped();
  TFRING_RETURN_IF_ERROR(Check(library_->call.GroupStart(), "ncclGroupStart"));
  Status issued;
  for (const NcclCall& call : program.calls) {
    issued = Issue(call, program, at, stream);
    if (!issued.ok()) break;
  }
  const NcclResult ended = library_->call.GroupEnd();
  if (!issued.ok()) return issued;
  return Finish(ended, "ncclGroupEnd", kNever);
}

Status NcclCommunicator::AsyncError() {
  if (handle_ == nullptr || stop_->load(std::memory_order_acquire)) return OkStatus();
  NcclResult state = NcclResult::kSuccess;
  TFRING_RETURN_IF_ERROR(
      Check(library_->call.CommGetAsyncError(handle_, &state), "ncclCommGetAsyncError"));
  return Check(state, "a collective");
}

void NcclCommunicator::Abort() {
  NcclComm const handle = handle_.exchange(nullptr);
  if (handle != nullptr) (void)library_->call.CommAbort(handle);
}

Status NcclCommunicator::Destroy(TimePoint deadline) {
  if (handle_ == nullptr) return OkStatus();
  TFRING_RETURN_IF_ERROR(
      Finish(library_->call.CommFinalize(handle_), "ncclCommFinalize", deadline));
  NcclComm const handle = handle_.exchange(nullptr);
  (void)library_->call.CommDestroy(handle);
  return OkStatus();
}

}  // namespace tfring
