#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_LANE_HEADER_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_LANE_HEADER_H_

#include <cstdint>
#include <string>

namespace tfring {

// The first bytes of what one rank sends to another for one plan, in the sender's byte order. Both
// ends compute it from what they believe to run, so a difference is an error before any byte of the
// data counts as received.
struct LaneHeader {
  uint64_t sequence = 0;  // of the plan
  uint64_t content = 0;   // how many bytes follow, and a checksum of the algorithm's name
};
static_assert(sizeof(LaneHeader) == 16, "sent as bytes");

// How many bytes are sent before the data: the header, and padding if the data does not fit into
// the rest of the header's cache line. The data then begins at a new line.
int64_t LeadBytes(int64_t data_bytes);
inline constexpr int64_t kMaxLeadBytes = 64;

LaneHeader MakeLaneHeader(uint64_t sequence, int64_t bytes, const char* algorithm);

// What is different: "plan 16 with 400 bytes came where plan 17 with 800 bytes, by ring, was
// expected. The ranks do not ...". Empty if nothing is.
std::string LaneMismatch(const LaneHeader& expected, const LaneHeader& got, const char* algorithm);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_LANE_HEADER_H_
