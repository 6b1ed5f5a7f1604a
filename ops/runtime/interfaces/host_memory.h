#ifndef TFRING_OPS_RUNTIME_INTERFACES_HOST_MEMORY_H_
#define TFRING_OPS_RUNTIME_INTERFACES_HOST_MEMORY_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/runtime/base/types.h"

namespace tfring {

// Memory that the ranks of a host can all see: each has a part, which it alone writes and all of
// them read. What is in the parts, and in which order it changes, is the users' affair. Used by one
// thread at a time, the one that uses the DataTransport that it comes from and lives as long as; an
// interrupt of the transport ends Sleep. A part stays readable when the process of its rank ends.
class HostMemory {
 public:
  static constexpr int64_t kPartBytes = 2 << 20;

  virtual ~HostMemory() = default;

  // The ranks that have a part, ascending, with this one: the same list on all of them.
  virtual const std::vector<Rank>& ranks() const = 0;
  // kPartBytes at the beginning of a page, zero at first.
  virtual char* PartOf(Rank rank) const = 0;

  // After a change of the own part, stored with memory_order_seq_cst: wakes `rank` if it sleeps and
  // does not await another one.
  virtual void Notify(Rank rank) = 0;

  // Sleeps until `ready` is true, which loads with memory_order_seq_cst what others change, or the
  // deadline (CLOCK_MONOTONIC) has passed. Others than `awaited` do not wake it, unless that is
  // kNoRank; so `ready` has to be true as well if that rank need not change anything any more. May
  // return early for no reason.
  virtual void Sleep(Rank awaited, const std::function<bool()>& ready, TimePoint deadline) = 0;

  // Whether the rank has closed its transport. Read it before the part: what was written earlier is
  // then seen.
  virtual bool Closed(Rank rank) const = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_HOST_MEMORY_H_
