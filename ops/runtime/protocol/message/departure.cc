#include "ops/runtime/protocol/message/departure.h"

#include <utility>

#include "ops/runtime/base/wire_io.h"
#include "ops/runtime/protocol/message/text.h"

namespace tfring {
namespace {

constexpr size_t kMinDepartureBytes = 2;  // bounds counts, and so allocation

}  // namespace

void WriteDepartures(const std::vector<Departure>& departures, WireWriter* out) {
  out->Unsigned(departures.size());
  for (const Departure& departure : departures) {
    out->Signed(departure.rank);
    out->String(departure.error);
  }
}

// Texts of exceptions come from outside of the runtime, and go into errors that Python reads.
std::vector<Departure> ReadDepartures(WireReader* in) {
  std::vector<Departure> departures;
  const size_t count = in->Count<Departure>(kMinDepartureBytes);
  if (count == 0) in->Fail();
  departures.reserve(count);
  for (size_t i = 0; i < count && in->ok(); ++i) {
    Departure departure;
    departure.rank = in->Signed32();
    departure.error = in->String();
    if (departure.error.size() > kMaxDepartureError || !IsUtf8(departure.error)) in->Fail();
    departures.push_back(std::move(departure));
  }
  return departures;
}

}  // namespace tfring
