#include "ops/runtime/backend/nccl/expendable_thread.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "ops/runtime/base/signals.h"
#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

struct Ending {
  std::mutex mutex;  // guards ended
  std::condition_variable changed;
  bool ended = false;
};

}  // namespace

Status RunWithin(Duration limit, const std::string& what, std::function<void()> work) {
  auto ending = std::make_shared<Ending>();
  try {
    SignalsBlocked blocked;
    std::thread([ending, work = std::move(work)]() mutable {
      pthread_setname_np(pthread_self(), "tfring-nccl-one");
      work();
      work = nullptr;  // what it owns goes before it counts as ended
      std::lock_guard<std::mutex> lock(ending->mutex);
      ending->ended = true;
      ending->changed.notify_all();
    }).detach();
  } catch (const std::system_error& error) {
    return Internal("cannot start a thread for " + what + ": " + error.what());
  }
  std::unique_lock<std::mutex> lock(ending->mutex);
  const auto limit_ns = std::chrono::nanoseconds(limit);
  if (ending->changed.wait_for(lock, limit_ns, [&] { return ending->ended; })) return OkStatus();
  return DeadlineExceeded(what + " did not end within " + SecondsText(limit));
}

}  // namespace tfring
