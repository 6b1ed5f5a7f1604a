#ifndef TFRING_OPS_SIM_RANDOM_H_
#define TFRING_OPS_SIM_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tfring::sim {

// SplitMix64: a seed gives the same numbers on every machine and library, which the standard's
// distributions do not promise. A value type, for one thread.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  // In [0, n); n > 0.
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  // In [low, high].
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  bool Percent(int percent) { return Below(100) < percent; }

  template <typename T>
  const T& Pick(const std::vector<T>& values) {
    return values[static_cast<size_t>(Below(static_cast<int64_t>(values.size())))];
  }

  template <typename T>
  void Shuffle(std::vector<T>* values) {
    for (size_t i = values->size(); i > 1; --i) {
      std::swap((*values)[i - 1], (*values)[static_cast<size_t>(Below(static_cast<int64_t>(i)))]);
    }
  }

  // Returns an independent stream, so that a new draw in one part does not change other parts.
  Random Fork() { return Random(Next()); }

 private:
  uint64_t state_;
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_RANDOM_H_
