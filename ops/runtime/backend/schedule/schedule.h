#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SCHEDULE_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/base/types.h"

namespace tfring {

// Where bytes of a collective live on one rank. Input and output are the concatenation of all
// tensors of the collective: no packing, the runner maps ranges to pieces of tensors.
enum class Space : uint8_t { kInput, kOutput, kScratch };

struct Range {
  Space space = Space::kOutput;
  int64_t offset = 0;  // bytes
  int64_t bytes = 0;
};

enum class StepKind : uint8_t {
  kSend,        // src to peer
  kRecv,        // from peer into dst
  kRecvReduce,  // from peer; dst = src (op) received
  kReduce,      // dst = src (op) src2; dst may be one of them
  kCopy,        // dst = src
  kJoin,        // nothing: waits for more steps than one `after` holds
  // Of adasum.h:
  kAdasumDots,     // dst, three doubles, += the dot products of src and src2
  kAdasumAdd,      // dst = src + src2, as doubles
  kAdasumCombine,  // dst = Adasum(src, src2) by the dot products at `dots`; dst may be one of them
};

inline constexpr int kNoStep = -1;
inline constexpr int kMaxAfter = 3;
inline constexpr int64_t kAdasumDotsBytes = 24;  // three doubles

// One move of a schedule. It may start when the steps named in `after` have ended and, for sends
// and receives, all earlier sends to (receives from) the same peer have. The k-th send from a to b
// and the k-th receive of b from a have the same size. No step is empty except kJoin.
struct Step {
  StepKind kind = StepKind::kJoin;
  // What dst gets is complete: it is multiplied by the final scale of the collective. Exactly once
  // per element of the result.
  bool finish = false;
  int peer = 0;  // position in the process set
  Range src;
  Range src2;
  Range dst;
  int64_t dots = 0;  // kAdasumCombine: offset in the scratch of three doubles
  int after[kMaxAfter] = {kNoStep, kNoStep, kNoStep};
};

inline bool IsRecv(const Step& step) {
  return step.kind == StepKind::kRecv || step.kind == StepKind::kRecvReduce;
}

inline bool IsRemote(const Step& step) { return step.kind == StepKind::kSend || IsRecv(step); }

// All that one rank does for one collective: pure data, so that the runner can execute it, a
// simulator can price it and a test can check it for all ranks at once.
struct Schedule {
  const char* algorithm = "";
  int64_t scratch_bytes = 0;  // kScratch addressed by the steps
  int64_t zeroed_bytes = 0;   // this much of it, from its begin on, is zero at the start
  std::vector<Step> steps;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_SCHEDULE_H_
