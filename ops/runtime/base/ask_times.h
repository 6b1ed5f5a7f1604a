#ifndef TFRING_OPS_RUNTIME_BASE_ASK_TIMES_H_
#define TFRING_OPS_RUNTIME_BASE_ASK_TIMES_H_

#include <algorithm>

#include "ops/runtime/base/types.h"

namespace tfring {

// When ranks asked for a tensor: the first of them, the last but one (0 if only one rank had to
// ask) and the last, after which it was complete. Without a lock that is when the requests were at
// rank 0; in a lock, where nobody asks, when the ranks entered the batch.
struct AskTimes {
  TimePoint first = 0;
  TimePoint second_last = 0;
  TimePoint last = 0;
  Rank last_rank = kNoRank;

  // Of different ranks, in any order.
  void Add(Rank rank, TimePoint time) {
    if (last_rank == kNoRank || time < first) first = time;
    if (last_rank != kNoRank && time < last) {
      second_last = std::max(second_last, time);
      return;
    }
    second_last = last;
    last = time;
    last_rank = rank;
  }
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_ASK_TIMES_H_
