#ifndef TFRING_TOOLS_GPU_CHECK_TWO_RANKS_H_
#define TFRING_TOOLS_GPU_CHECK_TWO_RANKS_H_

#include <sys/types.h>

#include <functional>

#include "tools/gpu_check/gpu.h"

namespace tfring::gpu_check {

struct Sockets {
  Sockets();
  int ends[2];
};

// Of two ranks: one for the runtime, one for what else they tell each other.
struct TwoSockets {
  Sockets runtime;
  Sockets checks;

  // Of two processes, each keeps its own ends: so it sees that the other is gone.
  void Keep(Rank self) const;
};

// Returns when the other rank is there, too.
void Meet(int socket);

// Runs `rank` as two threads; the first error of either, which ends the other's Meet.
void OnThreads(const Sockets& checks, const std::function<void(Rank)>& rank);

// Starts rank 1 as a process of its own, before this one has used the driver.
pid_t Fork(const std::function<void()>& rank);

// Runs `rank` as two processes; its errors.
void OnProcesses(const TwoSockets& sockets, const std::function<void(Rank)>& rank);

// The GPU of a rank: each has its own if there are two.
int GpuOf(Rank rank, const Options& options);

}  // namespace tfring::gpu_check

#endif  // TFRING_TOOLS_GPU_CHECK_TWO_RANKS_H_
