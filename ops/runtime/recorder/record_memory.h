#ifndef TFRING_OPS_RUNTIME_RECORDER_RECORD_MEMORY_H_
#define TFRING_OPS_RUNTIME_RECORDER_RECORD_MEMORY_H_

#include <cstddef>
#include <memory>
#include <string>

#include "ops/runtime/base/status.h"
#include "ops/runtime/recorder/record_layout.h"

namespace tfring {

// The memory of one rank's record, shared with a file, so that the file has all of it whatever
// happens to this process; without a path, ordinary memory. A forked child does not have it. The
// destructor unmaps it and leaves the file.
class RecordMemory {
 public:
  // Makes the file anew, readable only by its owner, with room for a job of `size` ranks. All
  // blocks are allocated before it is mapped: a full file system is an error here, not SIGBUS
  // later.
  static Result<std::unique_ptr<RecordMemory>> Create(const std::string& path, int size);
  ~RecordMemory();
  RecordMemory(const RecordMemory&) = delete;
  RecordMemory& operator=(const RecordMemory&) = delete;

  RecordHeader& header() { return *static_cast<RecordHeader*>(base_); }
  // The slot of the entry with this number, from 1.
  CallRecord& call(uint64_t number) { return calls()[(number - 1) % kCallSlots]; }
  PlanRecord& plan(uint64_t number) { return plans()[(number - 1) % kPlanSlots]; }
  EventRecord& event(uint64_t number) { return events()[(number - 1) % kEventSlots]; }
  RankRecord& rank(int rank) { return ranks()[rank]; }

  const std::string& path() const { return path_; }
  size_t bytes() const { return bytes_; }

 private:
  RecordMemory(std::string path, void* base, size_t bytes, int size);
  char* After(size_t bytes) { return static_cast<char*>(base_) + bytes; }
  CallRecord* calls() { return reinterpret_cast<CallRecord*>(After(sizeof(RecordHeader))); }
  PlanRecord* plans() { return reinterpret_cast<PlanRecord*>(calls() + kCallSlots); }
  EventRecord* events() { return reinterpret_cast<EventRecord*>(plans() + kPlanSlots); }
  RankRecord* ranks() { return reinterpret_cast<RankRecord*>(events() + kEventSlots); }

  const std::string path_;
  void* const base_;
  const size_t bytes_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_RECORDER_RECORD_MEMORY_H_
