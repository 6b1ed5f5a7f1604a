#include "ops/runtime/transport/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace tfring {
namespace {

// One bit per descriptor. Pages of the table that are never written need no memory.
constexpr int kMaxFd = 1 << 20;
constexpr int kWords = kMaxFd / 64;
std::atomic<uint64_t> g_tracked[kWords];
std::atomic<int> g_words_used{0};
std::atomic<int> g_runtimes{0};
std::atomic<bool> g_forked_child{false};

void OnForkInChild() {
  const int words = g_words_used.load(std::memory_order_relaxed);
  for (int w = 0; w < words; ++w) {
    uint64_t bits = g_tracked[w].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) close(w * 64 + __builtin_ctzll(bits));
  }
  if (g_runtimes.load(std::memory_order_relaxed) > 0) g_forked_child = true;
}

void InstallHandler() {
  static const int installed = pthread_atfork(nullptr, nullptr, OnForkInChild);
  (void)installed;
}

}  // namespace

Status ForkGuard::Track(int fd) {
  if (fd < 0 || fd >= kMaxFd) {
    return InvalidArgument("descriptor " + std::to_string(fd) + " is not between 0 and " +
                           std::to_string(kMaxFd - 1));
  }
  InstallHandler();
  g_tracked[fd / 64].fetch_or(uint64_t{1} << (fd % 64), std::memory_order_relaxed);
  int used = g_words_used.load(std::memory_order_relaxed);
  while (used <= fd / 64 && !g_words_used.compare_exchange_weak(used, fd / 64 + 1)) {
  }
  return OkStatus();
}

void ForkGuard::Untrack(int fd) {
  if (fd < 0 || fd >= kMaxFd) return;
  g_tracked[fd / 64].fetch_and(~(uint64_t{1} << (fd % 64)), std::memory_order_relaxed);
}

void ForkGuard::RuntimeStarts() {
  InstallHandler();
  g_runtimes.fetch_add(1, std::memory_order_relaxed);
}

void ForkGuard::RuntimeEnded() { g_runtimes.fetch_sub(1, std::memory_order_relaxed); }

bool ForkGuard::InForkedChild() { return g_forked_child.load(std::memory_order_relaxed); }

Status ForkGuard::ForkedChildError() {
  return FailedPrecondition(
      "tfring cannot be used in a forked child of a process that called init(); start workers with "
      "the \"spawn\" method instead, or fork before init()");
}

}  // namespace tfring
