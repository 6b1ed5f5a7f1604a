#include "ops/runtime/thread_pool/worker_thread.h"

#include <pthread.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "ops/runtime/base/signals.h"

namespace tfring {

WorkerThread::~WorkerThread() {
  if (thread_.joinable()) thread_.detach();
}

Status WorkerThread::Start(const std::string& name, std::function<void()> body) {
  auto ending = std::make_shared<Ending>();
  SignalsBlocked blocked;
  try {
    thread_ = std::thread([name, ending, body = std::move(body)]() mutable {
      pthread_setname_np(pthread_self(), name.c_str());
      body();
      body = nullptr;  // what it owns goes before the thread counts as ended
      std::lock_guard<std::mutex> lock(ending->mutex);
      ending->ended = true;
      ending->changed.notify_all();
    });
  } catch (const std::system_error& error) {
    return Internal("cannot start the thread " + name + ": " + error.what());
  }
  ending_ = std::move(ending);
  id_ = thread_.get_id();
  return OkStatus();
}

bool WorkerThread::WaitFor(TimePoint deadline) {
  if (!thread_.joinable()) return true;
  const auto ended = [this] { return ending_->ended; };
  const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  std::unique_lock<std::mutex> lock(ending_->mutex);
  if (deadline != kNever) return ending_->changed.wait_until(lock, until, ended);
  ending_->changed.wait(lock, ended);
  return true;
}

bool WorkerThread::Join(TimePoint deadline) {
  if (!thread_.joinable()) return true;
  const bool ended = WaitFor(deadline);
  id_ = std::thread::id();  // the number may be given to another thread
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return ended;
}

}  // namespace tfring
