#ifndef TFRING_TOOLS_GPU_CHECK_STEPS_H_
#define TFRING_TOOLS_GPU_CHECK_STEPS_H_

#include "tools/gpu_check/gpu.h"
#include "tools/gpu_check/report.h"

// The steps of gpu_check. Each is run in a process of its own, fills a report and throws
// std::exception when something is wrong.
namespace tfring::gpu_check {

void Facts(const Options& options, Report* report);        // driver, GPUs, pack kernels that fit
void LoadLibrary(const Options& options, Report* report);  // NCCL: its file and version
void PackBits(const Options& options, Report* report);     // pack kernels against the CPU's
void PackSpeed(const Options& options, Report* report);    // against the device's own copy
void Latency(const Options& options, Report* report);      // from a stream's end to the host
void OneRank(const Options& options, Report* report);      // backend against the bare NCCL call
void Threads(const Options& options, Report* report);      // two ranks of one process
void Processes(const Options& options, Report* report);    // two ranks, a process each
void Hang(const Options& options, Report* report);         // a rank waits in vain: abort
void Death(const Options& options, Report* report);        // a rank is killed with SIGKILL

}  // namespace tfring::gpu_check

#endif  // TFRING_TOOLS_GPU_CHECK_STEPS_H_
