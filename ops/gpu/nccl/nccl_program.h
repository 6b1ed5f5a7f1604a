#ifndef TFRING_OPS_GPU_NCCL_NCCL_PROGRAM_H_
#define TFRING_OPS_GPU_NCCL_NCCL_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/gpu/nccl/nccl_api.h"
#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// A place in a tensor of the collective or in scratch memory of the device. Offset in bytes.
struct NcclPlace {
  enum class Space : uint8_t { kInput, kOutput, kScratch };
  Space space = Space::kScratch;
  size_t tensor = 0;
  int64_t offset = 0;
};

struct NcclCopy {
  NcclPlace from;
  NcclPlace to;  // equal to `from`, or without overlap
  int64_t bytes = 0;
};

// One NCCL call. `count` is the number of elements of NcclProgram::type as NCCL counts them:
// allgather and reduce-scatter take the count of one member.
struct NcclCall {
  enum class Kind : uint8_t {
    kAllReduce,
    kReduce,
    kBroadcast,
    kAllGather,
    kReduceScatter,
    kSend,
    kRecv
  };
  Kind kind = Kind::kAllReduce;
  NcclPlace from;  // unused by kRecv
  NcclPlace to;    // unused by kSend, and by a reduce on ranks other than the root
  int64_t count = 0;
  int peer = 0;  // position of the root, the receiver or the sender among the members
};

// One rank's work for one collective: copies, NCCL calls in one group, copies. The copies of a list
// may run at once, each element with the scale of the list. All members have the same calls, each
// from its own position. A value.
struct NcclProgram {
  std::vector<NcclCopy> before;
  Scale before_scale;
  std::vector<NcclCall> calls;
  NcclType type = NcclType::kUint8;
  NcclOp op = NcclOp::kSum;
  std::vector<NcclCopy> after;
  Scale after_scale;
  int64_t scratch_bytes = 0;
};

// The abilities that all members of a communicator have.
struct NcclAbilities {
  bool packs = false;  // copies of many tensors need few launches, and can multiply
};

// Tensors of at least this size are reduced in place; smaller ones are packed together.
inline constexpr int64_t kNcclDirectBytes = 2 << 20;

// Makes the program, which is the same on all members. Unimplemented if NCCL cannot give the CPU
// backend's result, as with factors and averages without kernels that multiply. The collective then
// has to be staged.
TFRING_EXPORT Result<NcclProgram> MakeNcclProgram(const Collective& collective,
                                                  const NcclAbilities& abilities);

// Returns whether there is a program for these properties on ranks whose kernels multiply.
TFRING_EXPORT bool NcclRuns(CollectiveKind kind, DataType dtype, ReduceOp op);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_NCCL_NCCL_PROGRAM_H_
