#include "ops/runtime/protocol/negotiation/attempts.h"

#include <cstddef>
#include <iterator>

#include "ops/runtime/protocol/message/text.h"

namespace tfring {
namespace {

// For each process set. A rank that is further behind gets the oldest that is kept.
constexpr size_t kMaxReasons = 16;

}  // namespace

Status StepFailed(const std::string& what, const std::string& why) {
  return Aborted(what + " was given up: " + why +
                 ". A step that fails on one rank fails on all. When every rank has caught the "
                 "error, the next step works");
}

void Attempts::End(ProcessSetId set, const std::string& why) {
  OfSet& of_set = sets_[set];
  of_set.reasons[of_set.over++] = Shortened(why);
  if (of_set.reasons.size() > kMaxReasons) of_set.reasons.erase(of_set.reasons.begin());
}

void Attempts::Leave(ProcessSetId set, Rank rank) { ++sets_[set].left[rank]; }

uint64_t Attempts::Over(ProcessSetId set) const {
  const auto of_set = sets_.find(set);
  return of_set == sets_.end() ? 0 : of_set->second.over;
}

const std::string* Attempts::WhyOver(ProcessSetId set, Rank rank) const {
  const auto found = sets_.find(set);
  if (found == sets_.end()) return nullptr;
  const OfSet& of_set = found->second;
  const auto of_rank = of_set.left.find(rank);
  const uint64_t left = of_rank == of_set.left.end() ? 0 : of_rank->second;
  return left == of_set.over ? nullptr : &of_set.reasons.lower_bound(left)->second;
}

}  // namespace tfring
