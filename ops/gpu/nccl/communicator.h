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

// Returns the device address of a place in a program.
using PlaceResolver = std::function<void*(const NcclPlace&)>;

// A non-blocking NCCL communicator: calls return at once, and this class polls until they have
// finished. One thread uses it. Another thread may call Abort after it has set `stop`, which makes
// the first thread return; the first thread must not use the communicator afterwards. Abort or
// Destroy gives up the handle; the destructor does not.
class NcclCommunicator {
 public:
  // `stop` outlives this.
  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, std::vector<Rank> members,
                   const std::atomic<bool>* stop);

  // All members call this; returns when they have found each other. DeadlineExceeded after `limit`.
  // The device's context must be current in this and all later calls.
  Status Init(const NcclUniqueId& id, int self, Duration limit);

  // Enqueues the NCCL calls of a program as one group.
  Status Enqueue(const NcclProgram& program, const PlaceResolver& at, CudaStreamHandle stream);

  // Returns an error that NCCL has noticed since the last call, or ok.
  Status AsyncError();

  // Ends the device's work for this communicator and frees it. May hang if NCCL hangs.
  void Abort();
  // Ends in order: waits for the communicator's collectives and for the other members. Has no
  // effect if it fails or does not finish by `deadline`.
  Status Destroy(TimePoint deadline);

  const std::vector<Rank>& members() const { return members_; }
  // Returns whether NCCL has reported the failure of another member.
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
