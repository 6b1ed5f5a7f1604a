// NCCL's functions for groups, collectives, transfers and operators.
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/nccl/communicator.h"
#include "tests/fakes/nccl/nccl_api.h"
#include "tests/fakes/nccl/settings.h"

#define FAKE_NCCL_API extern "C" __attribute__((visibility("default")))

namespace fake_nccl {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;  // of the first call that failed; the group then does nothing
  std::vector<std::pair<ncclComm_t, std::vector<Call>>> calls;  // by communicator, in order
};

Group& ThreadGroup() {
  thread_local Group group;
  return group;
}

ncclResult_t End() {
  Group group = std::exchange(ThreadGroup(), {});
  if (group.error != ncclSuccess) return group.error;
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, calls] : group.calls) {
    const auto found = Communicators::Find(comm);
    const ncclResult_t one =
        found == nullptr ? ncclInvalidArgument : found->Launch(std::move(calls));
    if (one != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) result = one;
  }
  return result;
}

ncclResult_t Start() {
  ++ThreadGroup().depth;
  return ncclSuccess;
}

ncclResult_t Add(ncclComm_t comm, const Call& call) {
  const auto found = Communicators::Find(comm);
  if (found == nullptr) return ncclInvalidArgument;
  if (Strikes("fail_call", found->rank())) {
    SetLastError("injected failure of a call");
    return static_cast<ncclResult_t>(Setting("error_code"));
  }
  // NCCL drops empty collectives; empty transfers meet their peer.
  if (call.count == 0 && call.function != kSend && call.function != kReceive) return ncclSuccess;
  auto& all = ThreadGroup().calls;
  for (auto& [known, calls] : all) {
    if (known != comm) continue;
    calls.push_back(call);
    return ncclSuccess;
  }
  all.push_back({comm, {call}});
  return ncclSuccess;
}

}  // namespace

bool InGroup() { return ThreadGroup().depth > 0; }

ncclResult_t Submit(ncclComm_t comm, const Call& call) {
  const bool alone = !InGroup();
  if (alone) Start();
  const ncclResult_t result = Add(comm, call);
  Group& group = ThreadGroup();
  if (result != ncclSuccess && group.error == ncclSuccess) group.error = result;
  return alone ? End() : result;
}

namespace {

ncclResult_t Reduction(Function function, const void* send, void* receive, size_t count, int dtype,
                       int op, int root, ncclComm_t comm, void* stream) {
  Call call;
  call.function = function;
  call.send = send;
  call.receive = receive;
  call.count = count;
  call.dtype = dtype;
  call.op = op;
  call.root = root;
  call.stream = stream;
  return Submit(comm, call);
}

}  // namespace
}  // namespace fake_nccl

FAKE_NCCL_API ncclResult_t ncclGroupStart() { return fake_nccl::Start(); }

FAKE_NCCL_API ncclResult_t ncclGroupEnd() {
  int& depth = fake_nccl::ThreadGroup().depth;
  if (depth == 0) {
    fake_nccl::SetLastError("ncclGroupEnd: not in a group call.");
    return ncclInvalidUsage;
  }
  if (depth > 1) {
    --depth;
    return ncclSuccess;
  }
  return fake_nccl::End();
}

FAKE_NCCL_API ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                                         ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
                                         NcclStream stream) {
  return fake_nccl::Reduction(fake_nccl::kAllReduce, send, receive, count, dtype, op, -1, comm,
                              stream);
}

FAKE_NCCL_API ncclResult_t ncclReduce(const void* send, void* receive, size_t count,
                                      ncclDataType_t dtype, ncclRedOp_t op, int root,
                                      ncclComm_t comm, NcclStream stream) {
  return fake_nccl::Reduction(fake_nccl::kReduce, send, receive, count, dtype, op, root, comm,
                              stream);
}

FAKE_NCCL_API ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count,
                                             ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
                                             NcclStream stream) {
  return fake_nccl::Reduction(fake_nccl::kReduceScatter, send, receive, count, dtype, op, -1, comm,
                              stream);
}

FAKE_NCCL_API ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                                         ncclDataType_t dtype, int root, ncclComm_t comm,
                                         NcclStream stream) {
  return fake_nccl::Reduction(fake_nccl::kBroadcast, send, receive, count, dtype, -1, root, comm,
                              stream);
}

FAKE_NCCL_API ncclResult_t ncclAllGather(const void* send, void* receive, size_t count,
                                         ncclDataType_t dtype, ncclComm_t comm, NcclStream stream) {
  return fake_nccl::Reduction(fake_nccl::kAllGather, send, receive, count, dtype, -1, -1, comm,
                              stream);
}

FAKE_NCCL_API ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t dtype, int peer,
                                    ncclComm_t comm, NcclStream stream) {
  return fake_nccl::Reduction(fake_nccl::kSend, send, nullptr, count, dtype, -1, peer, comm,
                              stream);
}

FAKE_NCCL_API ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t dtype, int peer,
                                    ncclComm_t comm, NcclStream stream) {
  return fake_nccl::Reduction(fake_nccl::kReceive, nullptr, receive, count, dtype, -1, peer, comm,
                              stream);
}
