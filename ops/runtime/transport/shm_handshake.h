#ifndef TFRING_OPS_RUNTIME_TRANSPORT_SHM_HANDSHAKE_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_SHM_HANDSHAKE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/transport/shm_segment.h"

namespace tfring {

// How to reach a rank of this host while shared memory is set up.
struct ShmPeer {
  Rank rank = kNoRank;
  int fd = -1;  // the connected data socket; not owned, and not used by others during the handshake
};

// What was agreed with one peer: its mapped segment, or null where the pair has to use sockets.
struct ShmAgreement {
  Rank rank = kNoRank;
  std::unique_ptr<ShmSegment> theirs;
  uint32_t our_ring = 0;    // in their segment: what we write
  uint32_t their_ring = 0;  // in our segment: what we read
};

// Offers `own` (null: this rank shares no memory) to every peer and maps the segments of the peers.
// Two ranks share memory only if each could map the segment of the other one: the nonce in a
// segment proves that they run on one host, whatever the names of their hosts are. All peers must
// call this at the same time. Unavailable names a peer that does not answer until `deadline`
// (CLOCK_MONOTONIC) or answers with something else.
Result<std::vector<ShmAgreement>> AgreeOnSharedMemory(const ShmSegment* own,
                                                      const std::vector<ShmPeer>& peers,
                                                      TimePoint deadline);

// Whether all ranks of `group` (with this one), and nobody else, can see the memory of one another:
// each tells all of its peers its own group. All peers must call this at the same time, after
// AgreeOnSharedMemory; a rank that shares no memory passes an empty group.
Result<bool> AgreeOnGroup(const std::vector<Rank>& group, const std::vector<ShmPeer>& peers,
                          TimePoint deadline);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_SHM_HANDSHAKE_H_
