#ifndef TFRING_OPS_SIM_VIRTUAL_CLOCK_H_
#define TFRING_OPS_SIM_VIRTUAL_CLOCK_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ops/runtime/base/types.h"

namespace tfring::sim {

inline constexpr Duration kMicrosecond = 1000;

// Virtual time, which jumps from event to event. Events of the same time run in the order in which
// they were planned, so a run depends only on its seed. Used by one thread; lives for one run.
class VirtualClock {
 public:
  TimePoint Now() const { return now_; }

  // Plans `action` for `when`, or for now if `when` has passed.
  void At(TimePoint when, std::function<void()> action) {
    heap_.push_back(Event{std::max(when, now_), next_order_++, std::move(action)});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }
  void After(Duration delay, std::function<void()> action) { At(now_ + delay, std::move(action)); }

  // Runs the next event; false if there is none.
  bool RunOne() {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    Event event = std::move(heap_.back());
    heap_.pop_back();
    now_ = event.when;
    ++events_run_;
    event.action();
    return true;
  }

  int64_t events_run() const { return events_run_; }

 private:
  struct Event {
    TimePoint when;
    uint64_t order;
    std::function<void()> action;
  };
  static bool Later(const Event& a, const Event& b) {
    return a.when != b.when ? a.when > b.when : a.order > b.order;
  }

  TimePoint now_ = 0;
  uint64_t next_order_ = 0;
  int64_t events_run_ = 0;
  std::vector<Event> heap_;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_VIRTUAL_CLOCK_H_
