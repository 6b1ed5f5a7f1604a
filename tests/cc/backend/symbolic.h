#ifndef TFRING_TESTS_CC_BACKEND_SYMBOLIC_H_
#define TFRING_TESTS_CC_BACKEND_SYMBOLIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/sim/pricing.h"

namespace tfring::testing {

// What is known of an element of a buffer in place of its value: whose inputs it contains, along
// which tree they were reduced, and how often it was finished.
struct Symbol {
  uint64_t ranks = 0;  // bit r: the input of rank r
  uint64_t tree = 0;   // equal for equal trees with equal leaves in equal order
  int finished = 0;
};

struct SymbolicRank {
  std::vector<Symbol> input;   // what the rank contributes, by element
  std::vector<Symbol> output;  // what came out
};

// Runs the schedules of all ranks on symbols, in a random order that `after` and the order of
// streams allow. `in_place`: output and input are the same memory. Returns what is wrong, or
// nothing: a range that is out of bounds, empty or cuts an element; an input counted twice; a write
// to the input; sends and receives that do not match; no progress.
std::string PlaySymbolically(const std::vector<Schedule>& schedules, int64_t element_bytes,
                             bool in_place, uint32_t seed, std::vector<SymbolicRank>* ranks);

// The same for an allgather of `blocks` elements of one byte, and checks the outputs.
std::string PlayAllgather(const std::vector<Schedule>& schedules,
                          const std::vector<int64_t>& blocks);

// Element `i` of the input of rank `r`.
Symbol Leaf(int r, int64_t i);

// What reducing two elements gives, the left one first.
Symbol Combined(const Symbol& left, const Symbol& right);

// All ranks with inputs of this many elements, and without outputs.
std::vector<SymbolicRank> Inputs(int size, int64_t elements);

// In which order a sum is made: see canonical_sum.h, or around the ring towards its owner.
enum class Order { kCanonical, kRing };
// Element i of the sum of all ranks' inputs for its owner.
Symbol SumOf(Order order, int size, int owner, int64_t i);
// True if `actual` is `expected` and was finished once.
bool IsFinished(const Symbol& actual, const Symbol& expected);

using Blocks = std::vector<int64_t>;
int64_t Sum(const Blocks& blocks);
// Blocks of multiples of `unit`: uneven, even, some of them empty, all empty, and all but one
// empty.
std::vector<Blocks> BlockCases(int size, int64_t unit);

int64_t BytesSent(const Schedule& schedule);

// Links of 1000 ns and 1e9 bytes a second, and reducing that is as good as free.
sim::LinkModel TextbookLinks();

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_BACKEND_SYMBOLIC_H_
