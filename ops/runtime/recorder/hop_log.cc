#include "ops/runtime/recorder/hop_log.h"

#include <utility>

namespace tfring {

void HopLog::Add(const Hop& hop) {
  std::lock_guard<std::mutex> lock(mutex_);
  // A plan that began while this was on may end later.
  if (hops_.size() < hops_.capacity()) hops_.push_back(hop);
}

std::vector<Hop> HopLog::Take(bool go_on) {
  std::vector<Hop> taken;
  if (go_on)
    taken.reserve(kMost);  // not under the lock, for which the thread that runs plans would wait
  {
    std::lock_guard<std::mutex> lock(mutex_);
    taken.swap(hops_);
  }
  on_.store(go_on, std::memory_order_relaxed);
  return taken;
}

}  // namespace tfring
