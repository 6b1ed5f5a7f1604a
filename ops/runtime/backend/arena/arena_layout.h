#ifndef TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_LAYOUT_H_
#define TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_LAYOUT_H_

#include <atomic>
#include <cstdint>
#include <cstring>

#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/host_memory.h"

namespace tfring {

// A cache line: what different ranks write shares none.
inline constexpr int64_t kArenaLine = 64;

// A rank's arena is its part of a HostMemory. Only that rank writes it; zeros mean "nothing yet".
// Each value that others wait for has a separate cache line, so a line is fetched once per change.

// What a rank publishes when it begins a plan. `key` is written last.
struct alignas(64) ArenaHeader {
  std::atomic<uint64_t> key{0};  // of the plan: its sequence plus 1, so that keys only grow
  uint64_t number = 0;           // of the rank's plans, counted by itself from 1
  uint64_t content = 0;          // as in a LaneHeader
  uint32_t is_void = 0;          // 1: it does not enter the batch of a lock
  uint32_t entered = 0;          // when the rank entered that: see ShortTime
  char payload[32] = {};         // the input, if it fits
};
static_assert(sizeof(ArenaHeader) == 64, "one cache line");

// A time in microseconds, cut to 32 bits. That is unambiguous for times less than half an hour
// apart, and ranks leave a locked schedule after waiting 0.1 s for each other.
inline uint32_t ShortTime(TimePoint time) { return static_cast<uint32_t>(time / kMicrosecond); }
inline TimePoint LongTime(uint32_t time, TimePoint near) {
  return near + static_cast<int32_t>(time - ShortTime(near)) * kMicrosecond;
}

// How many blocks or rounds of a plan a rank has finished: see ArenaMark.
struct alignas(64) ArenaProgress {
  std::atomic<uint64_t> staged{0};   // its input can be read
  std::atomic<uint64_t> reduced{0};  // its slice of the result can be read
  std::atomic<uint64_t> read{0};     // it has read what it needs of others' inputs
};

struct alignas(64) ArenaEnd {
  std::atomic<uint64_t> finished{0};  // the key of the last plan for which it reads nothing more
};

struct ArenaControl {
  ArenaHeader headers[2];  // of the rank's even and odd plans
  ArenaProgress progress;
  ArenaEnd end;
};
static_assert(sizeof(ArenaControl) == 256, "four cache lines");

// `count` blocks of the plan with this key, in one number that only grows.
inline uint64_t ArenaMark(uint64_t key, int64_t count) {
  return key << 24 | static_cast<uint64_t>(count);
}
inline constexpr int64_t kArenaMaxBlocks = (int64_t{1} << 24) - 1;

inline constexpr int64_t kArenaPayloadBytes = sizeof(ArenaHeader::payload);
inline constexpr int64_t kArenaSlotBytes = 128 << 10;
inline constexpr int64_t kArenaBlockBytes = 512 << 10;
inline constexpr int kArenaDepth = 2;  // how many blocks may be under way

// Where the rest of an arena is.
class Arena {
 public:
  Arena() = default;
  explicit Arena(char* part) : part_(part) {}

  ArenaControl* control() const { return reinterpret_cast<ArenaControl*>(part_); }
  ArenaHeader* header(uint64_t number) const { return &control()->headers[number & 1]; }
  // The input of a small plan, or the first round of a larger one.
  char* slot(uint64_t number) const { return part_ + kPage + (number & 1) * kArenaSlotBytes; }
  // kArenaDepth blocks of input.
  char* staging() const { return part_ + kPage + 2 * kArenaSlotBytes; }
  char* staged(int64_t block) const { return staging() + block % kArenaDepth * kArenaBlockBytes; }
  // The rank's slice of the result of a block: at most half of it, and a cache line.
  char* result(int64_t block) const {
    return part_ + kResults + block % kArenaDepth * kResultBytes;
  }

 private:
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kResults = kPage + 2 * kArenaSlotBytes + kArenaDepth * kArenaBlockBytes;
  static constexpr int64_t kResultBytes = kArenaBlockBytes / 2 + 64;
  static_assert(kResults + kArenaDepth * kResultBytes <= HostMemory::kPartBytes);

  char* part_ = nullptr;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_LAYOUT_H_
