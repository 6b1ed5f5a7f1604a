#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_DEPARTURE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_DEPARTURE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "ops/runtime/base/types.h"

namespace tfring {

class WireReader;
class WireWriter;

// A rank that shuts down.
struct Departure {
  Rank rank = kNoRank;
  std::string error;  // the exception with which its process ends; empty if there was none
};
inline constexpr size_t kMaxDepartureError = 512;  // bytes of UTF-8; see Shortened

// The body of a kGoodbye frame.
void WriteDepartures(const std::vector<Departure>& departures, WireWriter* out);
std::vector<Departure> ReadDepartures(WireReader* in);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_DEPARTURE_H_
