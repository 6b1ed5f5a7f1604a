#ifndef TFRING_OPS_GPU_CUDA_EXPENDABLE_THREAD_H_
#define TFRING_OPS_GPU_CUDA_EXPENDABLE_THREAD_H_

#include <functional>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Starts a thread that nobody has to wait for. Internal if the system cannot start one.
Status StartExpendable(std::function<void()> work);

// Call this when an expendable thread may never return, for example from NCCL or the driver. If one
// still runs when the process exits, the process skips static destructors and ends with its exit
// code: a library's destructor beside a thread inside that library would crash. Later calls do
// nothing.
void LeaveAlone();

// Runs `work` on a new thread and waits for it, at most `limit`. After that the thread may still
// run, so `work` must own everything that it uses. DeadlineExceeded if `what` did not end in time;
// Internal if the system cannot start a thread.
Status RunWithin(Duration limit, const std::string& what, std::function<void()> work);

// As RunWithin for several works at once, each on a separate thread.
Status RunAllWithin(Duration limit, const std::string& what,
                    std::vector<std::function<void()>> works);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_CUDA_EXPENDABLE_THREAD_H_
