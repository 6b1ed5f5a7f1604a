#include "ops/runtime/crew/roster.h"

#include <algorithm>

namespace tfring {

size_t Roster::Open() {
  duties_.emplace_back();
  return duties_.size() - 1;
}

bool Roster::Add(size_t duty) {
  if (Closed(duty)) return false;
  duties_[duty].work = true;
  return true;
}

size_t Roster::Take() {
  for (size_t duty = 0; duty < duties_.size(); ++duty) {
    Duty& next = duties_[duty];
    if (!next.work || next.carried) continue;
    next.work = false;
    next.carried = true;
    return duty;
  }
  return kNothing;
}

void Roster::Carried(size_t duty, bool more) {
  duties_[duty].carried = false;
  if (more) duties_[duty].work = true;
}

bool Roster::Wakes() {
  const auto open = std::count_if(duties_.begin(), duties_.end(),
                                  [](const Duty& duty) { return duty.work && !duty.carried; });
  if (static_cast<size_t>(open) <= woken_ || sleeping_ <= woken_) return false;
  ++woken_;
  return true;
}

void Roster::Woke() {
  --sleeping_;
  // It may have woken for no reason. Whoever was woken then finds one sleeper less, and looks for
  // work all the same.
  if (woken_ > 0) --woken_;
}

bool Roster::Closed(size_t duty) const {
  const Duty& asked = duties_[duty];
  return asked.closing && !asked.work && !asked.carried;
}

bool Roster::AllClosed() const {
  for (size_t duty = 0; duty < duties_.size(); ++duty) {
    if (!Closed(duty)) return false;
  }
  return true;
}

}  // namespace tfring
