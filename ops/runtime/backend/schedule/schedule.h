#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SCHEDULE_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Where the bytes of a collective lie on one rank. Input and output are the concatenation of all
// tensors of the collective, which are not copied together: the executor finds the tensors behind
// a range.
enum class Space : uint8_t { kInput, kOutput, kScratch };

struct Range {
  Space space = Space::kOutput;
  int64_t offset = 0;  // bytes
  int64_t bytes = 0;
};

enum class StepKind : uint8_t {
  kSend,        // sends src to peer
  kRecv,        // receives dst from peer
  kRecvReduce,  // receives from peer; dst = src (op) received
  kReduce,      // dst = src (op) src2; dst may be one of them
  kCopy,        // dst = src
  kJoin,        // does nothing; for waiting for more steps than one `after` holds
  // For algorithms/adasum.h only:
  kAdasumDots,     // dst, three doubles, += the dot products of src and src2
  kAdasumAdd,      // dst = src + src2, as doubles
  kAdasumCombine,  // dst = Adasum(src, src2) with the dot products at `dots`; dst may be one of
                   // them
};

inline constexpr int kNoStep = -1;
inline constexpr int kMaxAfter = 3;
inline constexpr int64_t kAdasumDotsBytes = 24;  // three doubles

// One step of a schedule. It may start when the steps named in `after` have ended and, for a send
// (a receive), all earlier sends to (receives from) the same peer have ended, too. The k-th send
// from a to b and the k-th receive of b from a have the same size. No step is empty except kJoin.
struct Step {
  StepKind kind = StepKind::kJoin;
  // The step completes dst, which is therefore multiplied by the final scale of the collective.
  // True for exactly one step per element of the result.
  bool finish = false;
  int peer = 0;   // position in the process set
  Summed summed;  // of kReduce: src and src2; of kRecvReduce: src and what is received
  Range src;
  Range src2;
  Range dst;
  int64_t dots = 0;  // kAdasumCombine: offset of the three doubles in scratch
  int after[kMaxAfter] = {kNoStep, kNoStep, kNoStep};
};

inline bool IsRecv(const Step& step) {
  return step.kind == StepKind::kRecv || step.kind == StepKind::kRecvReduce;
}

inline bool IsRemote(const Step& step) { return step.kind == StepKind::kSend || IsRecv(step); }

// How many bytes a step moves.
inline int64_t StepBytes(const Step& step) {
  return step.kind == StepKind::kSend ? step.src.bytes : step.dst.bytes;
}

// All that one rank does for one collective, as a graph of steps. It is pure data, so that the
// runner can execute it, the simulator can compute how long it takes, and a test can check the
// schedules of all ranks together.
struct Schedule {
  const char* algorithm = "";
  int64_t scratch_bytes = 0;  // kScratch addressed by the steps
  int64_t zeroed_bytes = 0;   // this much of it, from its beginning on, is set to zero first
  std::vector<Step> steps;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SCHEDULE_H_
