#ifndef TFRING_OPS_GPU_CUDA_EXPENDABLE_THREAD_H_
#define TFRING_OPS_GPU_CUDA_EXPENDABLE_THREAD_H_

#include <functional>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Starts a thread that nobody waits for. Internal if the system has none left.
Status StartExpendable(std::function<void()> work);

// Says that an expendable thread is left alone, perhaps in NCCL or the driver. If one still runs
// when the process exits, the process ends with its exit code and without static destructors: those
// of the libraries that the thread is in would crash it, or it them. The first call counts.
void LeaveAlone();

// Runs `work` on a thread of its own and waits for it, but not beyond `limit`: then the thread is
// left alone and may run on, so `work` has to own all that it uses. DeadlineExceeded says that
// `what` did not end; Internal that the system has no thread left.
Status RunWithin(Duration limit, const std::string& what, std::function<void()> work);

// The same for several at once, each on a thread of its own.
Status RunAllWithin(Duration limit, const std::string& what,
                    std::vector<std::function<void()>> works);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_CUDA_EXPENDABLE_THREAD_H_
