#include "tools/gpu_check/two_ranks.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <mutex>
#include <thread>

#include "tools/gpu_check/pair.h"

namespace tfring::gpu_check {

Sockets::Sockets() { Require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no socket pair"); }

void TwoSockets::Keep(Rank self) const {
  close(runtime.ends[1 - self]);
  close(checks.ends[1 - self]);
}

void Meet(int socket) {
  char byte = 0;
  Require(SendAll(socket, &byte, 1) && ReceiveAll(socket, &byte, 1), "the other rank is gone");
}

void OnThreads(const Sockets& checks, const std::function<void(Rank)>& rank) {
  std::mutex mutex;  // guards `first`
  std::exception_ptr first;
  const auto run = [&](Rank self) {
    try {
      rank(self);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (first == nullptr) first = std::current_exception();
      for (const int end : checks.ends) shutdown(end, SHUT_RDWR);
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  if (first) std::rethrow_exception(first);
}

pid_t Fork(const std::function<void()>& rank) {
  const pid_t child = fork();
  Require(child >= 0, "no process");
  if (child > 0) return child;
  int code = 0;
  try {
    rank();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank 1: %s\n", error.what());
    code = 1;
  }
  _exit(code);
}

void OnProcesses(const TwoSockets& sockets, const std::function<void(Rank)>& rank) {
  const pid_t child = Fork([&] {
    sockets.Keep(1);
    rank(1);
  });
  sockets.Keep(0);
  rank(0);
  int status = 0;
  waitpid(child, &status, 0);
  Require(status == 0, "rank 1 failed");
}

int GpuOf(Rank rank, const Options& options) { return rank > 0 && Gpu::Count(options) > 1 ? 1 : 0; }

}  // namespace tfring::gpu_check
