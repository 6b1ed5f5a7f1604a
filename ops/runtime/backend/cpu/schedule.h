#ifndef TFRING_OPS_RUNTIME_BACKEND_CPU_SCHEDULE_H_
#define TFRING_OPS_RUNTIME_BACKEND_CPU_SCHEDULE_H_

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
  kReduce,      // dst = dst (op) src
  kCopy,        // dst = src
  kScale,       // dst = dst * scale, once, at the owner of the slice
};

inline constexpr int kNoStep = -1;

// One move of a schedule. It may start when the steps named in `after` have ended and, for sends
// and receives, all earlier sends to (receives from) the same peer have.
struct Step {
  StepKind kind = StepKind::kCopy;
  int peer = 0;  // position in the process set
  Range src;
  Range dst;
  int after[2] = {kNoStep, kNoStep};
};

// All that one rank does for one collective: pure data, so that the runner can execute it, a
// simulator can price it and a test can check it for all ranks at once.
struct Schedule {
  const char* algorithm = "";
  int64_t scratch_bytes = 0;  // kScratch addressed by the steps
  std::vector<Step> steps;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_CPU_SCHEDULE_H_
