#ifndef TFRING_OPS_RUNTIME_TRANSPORT_SHM_HANDSHAKE_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_SHM_HANDSHAKE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/transport/shm_segment.h"

namespace tfring {

// A rank of this host, and how to reach it while shared memory is set up.
struct ShmPeer {
  Rank rank = kNoRank;
  int fd = -1;  // the connected data socket; not owned, not used by others during the handshake
};

// The agreement with one peer: its mapped segment, or null if the pair has to use sockets.
struct ShmAgreement {
  Rank rank = kNoRank;
  std::unique_ptr<ShmSegment> theirs;
  uint32_t our_ring = 0;    // in the peer's segment: we write it
  uint32_t their_ring = 0;  // in our segment: we read it
};

// Offers `own` (null: this rank shares no memory) to each peer and maps the segments of the peers.
// Two ranks share memory only if each can map the other's segment: the nonce in a segment proves
// that they run on one host, whatever their host names are. All peers must call this at the same
// time. Unavailable names a peer that does not answer by `deadline` (CLOCK_MONOTONIC), or whose
// answer is malformed.
Result<std::vector<ShmAgreement>> AgreeOnSharedMemory(const ShmSegment* own,
                                                      const std::vector<ShmPeer>& peers,
                                                      TimePoint deadline);

// Returns whether exactly the ranks of `group` (this rank included) share memory with each other:
// each rank sends its group to all its peers. All peers must call this at the same time, after
// AgreeOnSharedMemory. A rank that shares no memory passes an empty group.
Result<bool> AgreeOnGroup(const std::vector<Rank>& group, const std::vector<ShmPeer>& peers,
                          TimePoint deadline);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_SHM_HANDSHAKE_H_
