#include "ops/gpu/nccl/expendable_thread.h"

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

Status StartExpendable(std::function<void()> work) {
  try {
    SignalsBlocked blocked;
    std::thread([work = std::move(work)]() mutable {
      pthread_setname_np(pthread_self(), "tfring-nccl-one");
      work();
    }).detach();
  } catch (const std::system_error& error) {
    return Internal(std::string("cannot start a thread for NCCL: ") + error.what());
  }
  return OkStatus();
}

Status RunWithin(Duration limit, const std::string& what, std::function<void()> work) {
  auto ending = std::make_shared<Ending>();
  TFRING_RETURN_IF_ERROR(StartExpendable([ending, work = std::move(work)]() mutable {
    work();
    work = nullptr;  // what it owns goes before it counts as ended
    std::lock_guard<std::mutex> lock(ending->mutex);
    ending->ended = true;
    ending->changed.notify_all();
  }));
  std::unique_lock<std::mutex> lock(ending->mutex);
  const auto limit_ns = std::chrono::nanoseconds(limit);
  if (ending->changed.wait_for(lock, limit_ns, [&] { return ending->ended; })) return OkStatus();
  return DeadlineExceeded(what + " did not end within " + SecondsText(limit));
}

}  // namespace tfring
