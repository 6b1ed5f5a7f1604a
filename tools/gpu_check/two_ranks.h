#ifndef TFRING_TOOLS_GPU_CHECK_TWO_RANKS_H_
#define TFRING_TOOLS_GPU_CHECK_TWO_RANKS_H_

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "tools/gpu_check/gpu.h"
#include "tools/gpu_check/report.h"

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

// What each of two ranks on threads is doing. A step that is not over after its limit ends here,
// with the whole process and a line that says it: nothing else ends a thread that waits for a GPU.
class Phases {
 public:
  // `report` is not written to while this exists.
  Phases(const Options& options, const Report& report);
  ~Phases();

  void Begin(Rank self, std::string what);

 private:
  struct Phase {
    std::string what = "begins";
    double since = Seconds();
  };
  void Watch();

  const double limit_;
  Report line_;
  std::mutex mutex_;  // guards the two below
  Phase phases_[2];
  bool over_ = false;
  std::condition_variable changed_;
  std::thread watch_;
};

// Starts rank 1 as a process of its own, before this one has used the driver.
pid_t Fork(const std::function<void()>& rank);

// Runs `rank` as two processes; its errors.
void OnProcesses(const TwoSockets& sockets, const std::function<void(Rank)>& rank);

// The GPU of a rank: each has its own if there are two.
int GpuOf(Rank rank, const Options& options);

}  // namespace tfring::gpu_check

#endif  // TFRING_TOOLS_GPU_CHECK_TWO_RANKS_H_
