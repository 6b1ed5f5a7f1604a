#ifndef TFRING_OPS_RUNTIME_RECORDER_RECORD_LAYOUT_H_
#define TFRING_OPS_RUNTIME_RECORDER_RECORD_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/plan_marks.h"

// The record of one rank, as it lies in a file that the process maps: a RecordHeader, then rings of
// CallRecord, PlanRecord and EventRecord, then one RankRecord for each rank of the job. Other
// processes read it at any time, also when the rank is gone; tfring/observe/recorder/layout.py has
// the same layout. Integers are little endian, times are nanoseconds of the host's monotonic clock,
// 0 means "not yet", and texts end with a zero byte unless they fill their field. A slot of a ring
// is free while its number is 0: a writer sets that first and the new number last.
namespace tfring {

inline constexpr char kRecordMagic[8] = {'T', 'F', 'R', 'I', 'N', 'G', 'R', 'C'};
inline constexpr uint32_t kRecordVersion = 1;
inline constexpr size_t kCallSlots = 8192;
inline constexpr size_t kPlanSlots = 4096;
inline constexpr size_t kEventSlots = 256;

enum class RankState : int32_t { kRunning = 1, kLeft = 2, kFailed = 3 };

// What `fit` reports now and then: the epoch, from 1, and the number of epochs; the last step; the
// loss of the epoch so far; the nanoseconds in callbacks since the start.
struct FitMark {
  int64_t epoch, epochs, last_step;
  std::optional<double> loss;
  int64_t callback_nanoseconds;
};

// What optimizers hold, in bytes: the weights that they train; their states; the
// parts of states that an elastic job keeps of its commits.
struct MemoryMark {
  int64_t weights, states, copies;
};

struct RecordHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint32_t call_bytes, call_slots;
  uint32_t plan_bytes, plan_slots;
  uint32_t event_bytes, event_slots;
  uint32_t rank_bytes, rank_slots;
  int32_t rank, size;
  int32_t local_rank, pid;
  uint64_t generation;        // counts the inits of this process
  int64_t started_wall;       // one moment on two clocks: nanoseconds since 1970,
  int64_t started_monotonic;  // and of the monotonic clock
  int64_t pid_started;        // /proc/PID/stat, field 22: tells a process from a later one
  int64_t pid_space;          // inode of the namespace in which `pid` is a process
  char boot[40];              // equal where the monotonic clock is the same one
  char host[64];
  char job[64];
  // Nanoseconds until a stall ends the job and until a silent rank counts as lost. 0: never.
  int64_t stall_shutdown, heartbeat_timeout;
  char unused_1[512 - 288];
  // From here on written while the rank runs.
  // First a cache line that is written under the lock of the call table.
  std::atomic<uint64_t> calls;        // numbers given so far; the last call has this one
  std::atomic<uint64_t> overwritten;  // calls that lost their slot before their end
  std::atomic<int64_t> ended;         // calls that have ended
  std::atomic<int64_t> failed;        // of these, with an error
  std::atomic<int64_t> bytes;         // of tensors of calls that have ended well
  int64_t unused_2[3];
  // Then one of the control thread.
  std::atomic<uint64_t> plans;   // plans that this rank has run or is running
  std::atomic<uint64_t> events;  // numbers given so far
  std::atomic<int64_t> awake;    // when the control thread last did anything
  std::atomic<int64_t> cache_hits;
  std::atomic<int64_t> bytes_sent;
  std::atomic<int32_t> state;  // RankState
  char unused_3[20];
  // What the program reports: see Recorder::MarkStep.
  std::atomic<int64_t> step, step_began, samples;
  std::atomic<int64_t> input_time;      // nanoseconds spent waiting for input so far
  std::atomic<int64_t> locks, unlocks;  // of the schedule: how many have begun, have ended
  std::atomic<int64_t> lock_rounds;     // run in them
  // Of the `fit` that runs, see FitMark; 0: unknown.
  std::atomic<int64_t> callback_time, epoch, epochs, last_step;
  std::atomic<int64_t> has_loss;  // 1: the next one is known, which may be NaN
  std::atomic<double> loss;
  // In bytes: what the program says of itself, see MemoryMark, and the backend's buffers.
  std::atomic<int64_t> weights_memory, states_memory, copies_memory, buckets_memory;
  char unused_4[4096 - 776];
};

struct CallRecord {
  static constexpr uint8_t kBucket = 1, kInRun = 2, kUnnamed = 4, kRefused = 8, kEarly = 16,
                           kCompiled = 32;

  // In one cache line what is used at every stage of a call, each time by another thread.
  std::atomic<uint64_t> number;
  int64_t submitted;
  std::atomic<int64_t> planned;  // the plan came
  std::atomic<int64_t> ended;
  std::atomic<uint64_t> sequence;  // of the plan; 0: none yet
  int64_t bytes;
  uint64_t attempt;
  int32_t process_set;
  int32_t last_rank;  // that asked
  // On rank 0, of calls in which it takes part: when the first rank asked, the last but one, and
  // the last, which made the tensor complete.
  int64_t first_asked, second_last_asked, last_asked;
  uint32_t invocation;  // number of this call among those of its name, from 1; 0: not counted
  uint32_t tensors;
  int32_t root, peer;
  uint8_t kind, dtype, op, path;
  std::atomic<uint8_t> status;  // StatusCode, once ended
  uint8_t flags;
  uint8_t unused[2];
  int32_t shapes[12];  // of the first tensors that fit: number of dimensions, dimensions; then -1
  char name[104];      // a longer name is its beginning, "..." and its end
  char call_site[56];
};

struct PlanRecord {
  std::atomic<uint64_t> sequence;
  int64_t queued;  // handed to the backend
  PlanMarks marks;
  int64_t bytes;
  int32_t process_set;
  uint32_t calls, tensors, members;
  uint8_t kind, dtype, op, path;
  std::atomic<uint8_t> status;
  uint8_t unused[35];
};

enum class EventType : int32_t {
  kInit = 1,
  kShutdown = 2,
  kAbort = 3,       // nothing runs any more: a plan broke, or a rank is lost
  kCallFailed = 4,  // the first of those that ended together
  kWarning = 5,     // a stall report or another warning of rank 0
  kStepFailed = 6,  // this rank has left an attempt of a process set
  kProcessSets = 7,
  kMark = 8,       // of the program
  kBadValues = 9,  // NaN or Inf in this rank's part of a sum; the value counts them
  // Of the schedule: the text says how much is locked (the value: tensors), or why that ended (the
  // value: rounds). The first, second, fourth, eighth ... time, ends by cause.
  kLock = 10,
  kUnlock = 11,
};

struct EventRecord {
  std::atomic<uint64_t> number;
  int64_t time;
  int32_t type;
  int32_t code;  // StatusCode
  int64_t value;
  char text[480];
};

// About one rank of the job: how long others have waited for it, known on rank 0, and what it was
// sent.
struct RankRecord {
  std::atomic<int64_t> late;   // from the last but one to the last, where that was this rank
  std::atomic<int64_t> times;  // how often it was the last
  std::atomic<int64_t> asked;  // when it last was the last
  std::atomic<int64_t> sent;   // bytes that this record's rank has sent to it, of host plans
};

static_assert(sizeof(RecordHeader) == 4096 && offsetof(RecordHeader, calls) == 512);
static_assert(sizeof(CallRecord) == 320 && offsetof(CallRecord, name) == 160);
static_assert(sizeof(PlanMarks) == 48 && sizeof(PlanRecord) == 128);
static_assert(sizeof(EventRecord) == 512 && sizeof(RankRecord) == 32);
static_assert(std::atomic<int64_t>::is_always_lock_free);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_RECORDER_RECORD_LAYOUT_H_
