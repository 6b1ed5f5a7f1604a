#ifndef TFRING_OPS_RUNTIME_RECORDER_INVOCATIONS_H_
#define TFRING_OPS_RUNTIME_RECORDER_INVOCATIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace tfring {

// Counts the calls of each name by a 48-bit hash of it, in a table of fixed size. Used by one
// thread at a time.
class Invocations {
 public:
  // Returns the number of this call among those of its name, from 1; 0 if the table is full.
  uint32_t Next(int32_t process_set, std::string_view name) {
    const uint64_t hash =
        std::hash<std::string_view>()(name) * 31 + static_cast<uint64_t>(process_set);
    const uint64_t tag = (hash >> 16) | 1;  // never 0, which is an empty slot
    size_t at = hash % kSlots;
    for (size_t tries = 0; tries < kTries; ++tries, at = (at + 1) % kSlots) {
      if (slots_[at].tag == 0) {
        if (names_ == kMaxNames) return 0;
        ++names_;
        slots_[at].tag = tag;
      }
      if (slots_[at].tag == tag) return ++slots_[at].count;
    }
    return 0;
  }

 private:
  static constexpr size_t kSlots = 16384;
  static constexpr size_t kMaxNames = kSlots / 4 * 3;
  static constexpr size_t kTries = 64;

  struct Slot {
    uint64_t tag = 0;
    uint32_t count = 0;
  };
  std::array<Slot, kSlots> slots_;
  size_t names_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_RECORDER_INVOCATIONS_H_
