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

}  // namespace tfring
