#ifndef TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_FLOWS_H_
#define TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_FLOWS_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// What the members of a collective read from each other's inputs, as one of them sees it. Offsets
// are bytes of the input space for what is sent, and of the output space for what is got (see
// MapBuffers). A value type.
//
// A flow travels in rounds of at most `window` bytes. The first is in the header or the slot, whose
// windows are of another size. Where several members read different parts, a rank's places are
// divided into a lane for each of them, so that reader and writer find a place without knowing what
// others send.
struct ArenaFlows {
  struct Flow {
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  std::vector<Flow> sends;  // by member: what it reads of this rank's input, this rank itself too
  std::vector<Flow> gets;   // by member: what this rank reads of that member's input
  bool adds = false;        // what is got is added up; all of it has one size and place
  bool one_lane = true;     // who reads something of a rank reads all that it stages
  int64_t total_bytes = 0;  // the same for all members

  int64_t header_window = 0;
  int64_t slot_window = 0;
  int64_t window = 0;       // of all later rounds
  int64_t round_bytes = 0;  // of all lanes together
  int depth = 1;            // how many rounds after the first may be under way

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
