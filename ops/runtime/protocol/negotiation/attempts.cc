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

void Attempts::Leave(ProcessSetId set, Rank rank) {
  OfRank& of_rank = sets_[set].ranks[rank];
  ++of_rank.left;
  of_rank.count = ++left_count_[rank];
}

// Of an attempt that is over.
const std::string& Attempts::Reason(const OfSet& of_set, uint64_t attempt) {
  return of_set.reasons.lower_bound(attempt)->second;
}

uint64_t Attempts::Over(ProcessSetId set) const {
  const auto of_set = sets_.find(set);
  return of_set == sets_.end() ? 0 : of_set->second.over;
}

const std::string* Attempts::WhyOver(ProcessSetId set, Rank rank) const {
  const auto of_set = sets_.find(set);
  if (of_set == sets_.end()) return nullptr;
  const auto of_rank = of_set->second.ranks.find(rank);
  const uint64_t left = of_rank == of_set->second.ranks.end() ? 0 : of_rank->second.left;
  return left == of_set->second.over ? nullptr : &Reason(of_set->second, left);
}

uint64_t Attempts::LeftCount(Rank rank) const {
  const auto it = left_count_.find(rank);
  return it == left_count_.end() ? 0 : it->second;
}

const std::string* Attempts::WhyOverSince(ProcessSetId set, Rank rank, uint64_t count) const {
  const auto of_set = sets_.find(set);
  if (of_set == sets_.end()) return nullptr;
  const auto of_rank = of_set->second.ranks.find(rank);
  if (of_rank != of_set->second.ranks.end() && of_rank->second.count > count) {
    return &Reason(of_set->second, of_rank->second.left - 1);
  }
  return WhyOver(set, rank);
}

}  // namespace tfring
