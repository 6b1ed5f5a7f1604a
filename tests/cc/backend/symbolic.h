#ifndef TFRING_TESTS_CC_BACKEND_SYMBOLIC_H_
#define TFRING_TESTS_CC_BACKEND_SYMBOLIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/backend/schedule/schedule.h"

namespace tfring::testing {

// What an element of a buffer stands for: whose inputs it contains, along which tree they were
// combined, and how often it was finished.
struct Symbol {
  uint64_t ranks = 0;  // bit r: the input of rank r
  uint64_t tree = 0;   // equal for equal trees with equal leaves in equal order
  int finished = 0;
};

struct SymbolicRank {
  std::vector<Symbol> input;   // what the rank contributes, by element
  std::vector<Symbol> output;  // what came out
};

// Plays the schedules of all ranks without moving data, in a random order that `after` and the
// order of streams allow. `in_place`: output and input are the same memory. Returns what is wrong:
// a range out of bounds, not whole elements or empty; an input counted twice; elements combined
// that belong to different positions; a write to the input; sends and receives that do not match;
// no progress. Empty if nothing is.
std::string PlaySymbolically(const std::vector<Schedule>& schedules, int64_t element_bytes,
                             bool in_place, uint32_t seed, std::vector<SymbolicRank>* ranks);

// The value that rank `r` contributes at element `i` of its input.
Symbol Leaf(int r, int64_t i);

// What combining two elements gives, the left one first.
Symbol Combined(const Symbol& left, const Symbol& right);

// What two elements add to the dot products of their tensors, as a number that is summed, and the
// combined element that such a sum makes.
uint64_t DotsOf(const Symbol& a, const Symbol& b);
Symbol AdasumOf(const Symbol& combined, uint64_t dots);

int64_t BytesSent(const Schedule& schedule);

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_BACKEND_SYMBOLIC_H_
