#ifndef TFRING_TOOLS_GPU_CHECK_STEPS_H_
#define TFRING_TOOLS_GPU_CHECK_STEPS_H_

#include "tools/gpu_check/gpu.h"
#include "tools/gpu_check/report.h"

// The steps of gpu_check. Each is run in a process of its own, fills a report and throws
// std::exception when something is wrong.
namespace tfring::gpu_check {

void Facts(const Options& options, Report* report);        // driver, GPUs, pack kernels, NCCL
void PackBits(const Options& options, Report* report);     // pack kernels against the CPU's
void PackSpeed(const Options& options, Report* report);    // against the device's own copy
void Latency(const Options& options, Report* report);      // from a stream's end to the host
void Processes(const Options& options, Report* report);    // two ranks: values
void Launch(const Options& options, Report* report);       // what a small allreduce costs
void Overlap(const Options& options, Report* report);      // what runs between start and done
void Threads(const Options& options, Report* report);      // two ranks of one process: times
void Hang(const Options& options, Report* report);         // a rank waits in vain: abort
void Death(const Options& options, Report* report);        // a rank is killed with SIGKILL
void AbortQueued(const Options& options, Report* report);  // abort with work before the collective

}  // namespace tfring::gpu_check

#endif  // TFRING_TOOLS_GPU_CHECK_STEPS_H_
