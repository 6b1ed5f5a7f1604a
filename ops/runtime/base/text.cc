#include "ops/runtime/base/text.h"

#include <sstream>

namespace tfring {

std::string RankName(Rank rank, const std::vector<std::string>& hosts) {
  const auto index = static_cast<size_t>(rank);
  return "rank " + std::to_string(rank) +
         (index < hosts.size() ? " (host " + hosts[index] + ")" : "");
}

std::string SecondsText(Duration duration) {
  std::ostringstream text;
  const int64_t milliseconds = duration / kMillisecond;
  text << static_cast<double>(milliseconds) / 1000 << " s";
  return text.str();
}

std::string FirstAndMore(const std::string& first, size_t count) {
  const std::string quoted = "'" + first + "'";
  return count <= 1 ? quoted : quoted + " and " + std::to_string(count - 1) + " more";
}

size_t Utf8Size(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t size = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
  const bool too_high = lead == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || too_high ? 0 : size;
}

}  // namespace tfring
