#ifndef TFRING_OPS_GPU_NCCL_NCCL_LIBRARY_H_
#define TFRING_OPS_GPU_NCCL_NCCL_LIBRARY_H_

#include <memory>
#include <string>

#include "ops/gpu/nccl/nccl_api.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// The loaded NCCL. Immutable and never unloaded: its threads may outlive every communicator. Any
// thread may use it.
struct NcclLibrary {
  NcclFunctions call;
  int version = 0;          // 22707 is 2.27.7
  std::string path;         // of the file
  bool shares_gpu = false;  // several ranks of a communicator may use one GPU
};

inline constexpr Duration kNcclLoadLimit = 30 * kSecond;

// Loads `file`; if it is empty, the libnccl.so.2 that is in the process already, else the system's.
// tfring/runtime/gpu/nccl.py chooses `file`. Functions are looked up in that library alone:
// TensorFlow exports some of the same names. Unavailable says in one sentence what is missing, too
// old, incomplete or failing. DeadlineExceeded: the library did not return within `limit`.
TFRING_EXPORT Result<std::shared_ptr<const NcclLibrary>> LoadNccl(const std::string& file,
                                                                  Duration limit = kNcclLoadLimit);

std::string NcclVersionText(int version);  // "2.27.7"

// Returns an error with what failed and NCCL's text; ok for kSuccess and kInProgress. A remote,
// system or network error is Unavailable: a peer may be gone. All other errors are Internal. `comm`
// may be null.
Status NcclStatus(const NcclLibrary& library, NcclResult result, const std::string& what,
                  NcclComm comm);

// Runs on an expendable thread, because the library opens sockets in this call.
Result<NcclUniqueId> MakeNcclUniqueId(std::shared_ptr<const NcclLibrary> library, Duration limit);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_NCCL_NCCL_LIBRARY_H_
