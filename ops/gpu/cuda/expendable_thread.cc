#include "ops/gpu/cuda/expendable_thread.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "ops/runtime/base/log.h"
#include "ops/runtime/base/signals.h"
#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

std::atomic<int> running{0};  // number of expendable threads in the process

struct Ending {
  std::mutex mutex;  // guards left
  std::condition_variable changed;
  size_t left = 0;
};

// exit() calls this before everything that was registered earlier.
void EndAtOnce(int code, void* /*argument*/) {
  if (running == 0) return;
  (void)FlushLog(kSecond);
  (void)std::fflush(nullptr);
  _exit(code);
}

}  // namespace

Status StartExpendable(std::function<void()> work) {
  ++running;
  try {
    SignalsBlocked blocked;
    std::thread([work = std::move(work)]() mutable {
      pthread_setname_np(pthread_self(), "tfring-gpu-one");
      work();
      work = nullptr;
      --running;
    }).detach();
  } catch (const std::system_error& error) {
    --running;
    return Internal(std::string("cannot start a thread for the GPU: ") + error.what());
  }
  return OkStatus();
}

void LeaveAlone() {
  // Register late: exit() calls the last registered function first.
  static std::once_flag once;
  std::call_once(once, [] { (void)on_exit(&EndAtOnce, nullptr); });
}

Status RunAllWithin(Duration limit, const std::string& what,
                    std::vector<std::function<void()>> works) {
  auto ending = std::make_shared<Ending>();
  ending->left = works.size();
  for (std::function<void()>& work : works) {
    TFRING_RETURN_IF_ERROR(StartExpendable([ending, work = std::move(work)]() mutable {
      work();
      work = nullptr;  // destroy its objects before it counts as ended
      std::lock_guard<std::mutex> lock(ending->mutex);
      --ending->left;
      ending->changed.notify_all();
    }));
  }
  std::unique_lock<std::mutex> lock(ending->mutex);
  const auto limit_ns = std::chrono::nanoseconds(limit);
  if (ending->changed.wait_for(lock, limit_ns, [&] { return ending->left == 0; })) {
    return OkStatus();
  }
  LeaveAlone();
  return DeadlineExceeded(what + " did not end within " + SecondsText(limit));
}

Status RunWithin(Duration limit, const std::string& what, std::function<void()> work) {
  std::vector<std::function<void()>> works;
  works.push_back(std::move(work));
  return RunAllWithin(limit, what, std::move(works));
}

}  // namespace tfring
