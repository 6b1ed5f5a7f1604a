#include "ops/runtime/backend/schedule/runner.h"
#include "ops/runtime/base/clock.h"

namespace tfring {

// `bytes` of the first step of the lane have moved, which `lane->moved` does not count yet.
void ScheduleRunner::NoteHop(Lane* lane, int64_t bytes) {
  const Step& step = schedule_->steps[lane->steps[lane->head]];
  const bool receives = IsRecv(step);
  const int64_t all = receives ? step.dst.bytes : step.src.bytes;
  const TimePoint now = MonotonicNow();
  if (lane->moved == 0) lane->hop.first = now;
  if (lane->moved + bytes < all) return;
  const bool later = lane->hop.end != 0;
  if (later) lane->hop.since = lane->hop.end;
  if (!later && marks_ != nullptr) lane->hop.since = marks_->started;
  lane->hop.end = now;
  lane->hop.sequence = sequence_;
  lane->hop.bytes = all;
  lane->hop.peer = (*members_)[lane->peer];
  lane->hop.receives = receives ? 1 : 0;
  hops_->Add(lane->hop);
}

}  // namespace tfring
