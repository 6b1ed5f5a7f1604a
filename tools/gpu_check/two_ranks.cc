#include "tools/gpu_check/two_ranks.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <utility>

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

Phases::Phases(const Options& options, const Report& report)
    : limit_(options.limit), line_(report), watch_([this] { Watch(); }) {}

Phases::~Phases() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  watch_.join();
}

void Phases::Begin(Rank self, std::string what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  phases_[self] = {std::move(what), Seconds()};
}

void Phases::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto limit = std::chrono::duration<double>(limit_);
  if (changed_.wait_for(lock, limit, [this] { return over_; })) return;
  char seconds[40];
  std::snprintf(seconds, sizeof(seconds), "%g s", limit_);
  std::string error = std::string("not over after ") + seconds;
  for (Rank rank : {0, 1}) {
    std::snprintf(seconds, sizeof(seconds), " (%.1f s)", Seconds() - phases_[rank].since);
    error += "; rank " + std::to_string(rank) + " " + phases_[rank].what + seconds;
  }
  line_.Add("error", error);
  line_.Raw("ok", "false");
  std::cout << line_.Line() << std::endl;
  _exit(1);
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
