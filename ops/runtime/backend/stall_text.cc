#include "ops/runtime/backend/stall_text.h"

#include <algorithm>

#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

constexpr size_t kMaxNamed = 4;

std::string WaitText(const ScheduleRunner::Wait& wait, const std::string& self,
                     const std::string& peer) {
  const std::string bytes = std::to_string(wait.bytes) + " bytes";
  std::string text;
  if (wait.bytes == 0) {
    text = "the path between " + self + " and " + peer + " carries nothing";
  } else if (wait.receives) {
    text = self + " waits for " + bytes + " from " + peer;
  } else {
    text = self + " waits for " + peer + " to take " + bytes;
  }
  return wait.trouble.empty() ? text : text + "; " + wait.trouble;
}

}  // namespace

std::string StallText(const Collective& collective, Rank self,
                      const std::vector<std::string>& hosts,
                      const std::vector<ScheduleRunner::Wait>& waits, Duration quiet) {
  const bool trouble =
      std::any_of(waits.begin(), waits.end(),
                  [](const ScheduleRunner::Wait& wait) { return !wait.trouble.empty(); });
  std::string text = "plan " + std::to_string(collective.sequence) + ", " + collective.what +
                     ", has made no progress for " + SecondsText(quiet);
  std::vector<Rank> named;
  size_t left_out = 0;
  for (const ScheduleRunner::Wait& wait : waits) {
    if (trouble && wait.trouble.empty()) continue;
    // Trouble is that of the path, whatever the direction.
    if (trouble && std::count(named.begin(), named.end(), wait.peer) > 0) continue;
    if (named.size() == kMaxNamed) {
      ++left_out;
      continue;
    }
    text += (named.empty() ? ": " : ", and ") +
            WaitText(wait, RankName(self, hosts), RankName(wait.peer, hosts));
    named.push_back(wait.peer);
  }
  if (left_out > 0) text += ", and " + std::to_string(left_out) + " more waits";
  return text + (trouble ? ". Look at the network between these hosts"
                         : ". No path of this rank looks cut: the other rank may be stopped, busy "
                           "or waiting itself; see the log of every rank");
}

}  // namespace tfring
