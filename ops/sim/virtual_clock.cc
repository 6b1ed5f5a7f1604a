#include "ops/sim/virtual_clock.h"

#include <algorithm>
#include <utility>

namespace tfring::sim {

void VirtualClock::At(TimePoint when, std::function<void()> action) {
  heap_.push_back(Event{std::max(when, now_), next_order_++, std::move(action)});
  std::push_heap(heap_.begin(), heap_.end(), Later);
}

bool VirtualClock::RunOne() {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), Later);
  Event event = std::move(heap_.back());
  heap_.pop_back();
  now_ = event.when;
  ++events_run_;
  event.action();
  return true;
}

}  // namespace tfring::sim
