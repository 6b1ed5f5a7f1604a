#ifndef TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_FLOWS_H_
#define TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_FLOWS_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// Which parts of each other's inputs the members of a collective read, from the view of one member.
// Offsets of `sends` are bytes of the input space, offsets of `gets` bytes of the output space (see
// MapBuffers). A value type.
//
// A flow travels in rounds of at most `window` bytes. The first round is in the header or the slot,
// whose windows have different sizes. If several members read different parts, a rank divides its
// places into one lane per member. Reader and writer then find a place without knowing what others
// send.
struct ArenaFlows {
  struct Flow {
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  std::vector<Flow> sends;  // by member: what it reads of this rank's input, this rank itself too
  std::vector<Flow> gets;   // by member: what this rank reads of that member's input
  bool adds = false;        // the parts in `gets` are added up; all have one size and place
  bool one_lane = true;     // a member that reads from a rank reads everything that it stages
  int64_t total_bytes = 0;  // the same for all members

  int64_t header_window = 0;
  int64_t slot_window = 0;
  int64_t window = 0;       // of all later rounds
  int64_t round_bytes = 0;  // of all lanes together
  int depth = 1;            // how many rounds after the first may be in progress

  int LaneOf(int writer, int reader) const {
    return one_lane ? 0 : reader - (reader > writer ? 1 : 0);
  }
  // How many rounds a flow of `bytes` takes, and which of its bytes go in one of them.
  int64_t Rounds(int64_t bytes) const;
  int64_t Begin(int64_t round) const { return round == 0 ? 0 : slot_window + (round - 1) * window; }
  int64_t BytesIn(int64_t bytes, int64_t round) const;
};

// The flows of an allreduce, reduce, broadcast, allgather or reducescatter.
ArenaFlows ArenaFlowsOf(const Collective& collective);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_FLOWS_H_
