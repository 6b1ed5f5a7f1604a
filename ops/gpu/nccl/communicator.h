#ifndef TFRING_OPS_GPU_NCCL_COMMUNICATOR_H_
#define TFRING_OPS_GPU_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/gpu/nccl/nccl_api.h"
#include "ops/gpu/nccl/nccl_library.h"
#include "ops/gpu/nccl/nccl_program.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Where a place of a program is on the device.
using PlaceResolver = std::function<void*(const NcclPlace&)>;

// A communicator of NCCL that does not block: calls return at once and are asked about until they
// are through. One thread uses it; Abort may be called from another one, after which the first must
// not use it any more: `stop` is set before and makes the first return. Its handle is given up with
// Abort or Destroy, never by the destructor.
class NcclCommunicator {
 public:
  // `stop` outlives this.
  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, std::vector<Rank> members,
                   const std::atomic<bool>* stop);

  // All members call this; returns when they have found each other. DeadlineExceeded after `limit`.
  // The device's context is current, here and in what follows.
  Status Init(const NcclUniqueId& id, int self, Duration limit);

  // Enqueues the calls of a program, as one group.
  Status Enqueue(const NcclProgram& program, const PlaceResolver& at, CudaStreamHandle stream);

  // What NCCL has noticed since: ok while all is well.
  Status AsyncError();

  // Ends what the device does for this communicator and frees it. May hang where NCCL does.
  void Abort();
  // The orderly end: waits for its collectives and for the other members. Without effect if that
  // takes until `deadline` or fails.
  Status Destroy(TimePoint deadline);

  const std::vector<Rank>& members() const { return members_; }
  // Whether NCCL has said that another member failed.
  bool lost_peer() const { return lost_peer_; }

 private:
  Status Check(NcclResult result, const std::string& what);
  Status Finish(NcclResult result, const std::string& what, TimePoint deadline);
  Status Issue(const NcclCall& call, const NcclProgram& program, const PlaceResolver& at,
               CudaStreamHandle stream);

  const std::shared_ptr<const NcclLibrary> library_;
  const std::vector<Rank> members_;
  const std::atomic<bool>* const stop_;
  std::atomic<NcclComm> handle_{nullptr};
  bool lost_peer_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_NCCL_COMMUNICATOR_H_
