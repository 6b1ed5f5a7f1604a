#ifndef TFRING_TESTS_CC_BACKEND_ARENA_RANDOM_PLANS_H_
#define TFRING_TESTS_CC_BACKEND_ARENA_RANDOM_PLANS_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring::testing {

using Random = std::mt19937;

inline int64_t Below(Random* random, int64_t n) { return static_cast<int64_t>((*random)() % n); }

// A collective of a random kind, with the tensors of all its members. Its inputs are random, or of
// types whose sums are exact.
class RandomPlan {
 public:
  using Tensors = std::vector<std::vector<char>>;

  // Of some of the ranks below `size`. `large`: half of such plans have several blocks or rounds.
  RandomPlan(int size, uint64_t sequence, bool large, Random* random);

  const std::vector<Rank>& members() const { return of_all_.members; }
  const Collective& part(int member) const { return parts_[member]; }
  // Whether a member does not enter it.
  bool recalled() const;
  // What is wrong with the tensors of a member when it has ended; empty if nothing is.
  // `untouched`: nothing may have been written.
  std::string Wrong(int member, bool untouched) const;

 private:
  void Choose(int size, Random* random);
  void ChooseSizes(bool large, Random* random);
  void FillInputs(Random* random);
  void FillExpected();
  void MakeParts(Random* random);
  int64_t InputElements(size_t tensor, int member) const;
  int64_t OutputElements(size_t tensor, int member) const;
  std::vector<char> Sum(size_t tensor) const;
  double ValueAt(size_t tensor, int member, int64_t i) const;
  std::vector<char> Moved(size_t tensor, int member) const;
  int64_t Before(size_t tensor, int from, int to) const;

  Collective of_all_;  // without `self`, buffers and blocks
  int64_t element_ = 1;
  bool reduces_ = false;
  std::vector<bool> voids_;
  // Elements by tensor, giver and taker; of kinds that are no alltoall, what is the same for all
  // givers, or all takers, is there several times.
  std::vector<std::vector<std::vector<int64_t>>> elements_;
  std::vector<Tensors> inputs_;  // by member
  std::vector<Tensors> expected_;
  std::vector<bool> in_place_;
  std::vector<Tensors> given_;    // the memory of inputs
  std::vector<Tensors> outputs_;  // and of outputs, with one more byte each, which must stay
  std::vector<Collective> parts_;
};

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_BACKEND_ARENA_RANDOM_PLANS_H_
