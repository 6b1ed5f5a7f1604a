#include "ops/gpu/cuda/kept_memory.h"

#include <pthread.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "ops/gpu/cuda/expendable_thread.h"
#include "ops/runtime/base/log.h"

namespace tfring {
namespace {

constexpr std::chrono::milliseconds kPeriod(100);

// Never destroyed.
class KeptMemory {
 public:
  static KeptMemory& Get() {
    static auto* const kept = new KeptMemory();
    return *kept;
  }

  void Add(std::shared_ptr<CudaEvent> event, std::shared_ptr<void> memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!said_) {
      TFRING_LOG(kError) << "a GPU did not finish in the time that was left to it; the memory that "
                            "it may still use is freed once it has finished";
    }
    said_ = true;
    kept_.push_back({std::move(event), std::move(memory)});
    if (running_) return;
    running_ = StartExpendable([this] { Loop(); }).ok();  // on failure the next call tries again
    LeaveAlone();
  }

 private:
  struct Kept {
    std::shared_ptr<CudaEvent> event;
    std::shared_ptr<void> memory;
  };

  void Loop() {
    pthread_setname_np(pthread_self(), "tfring-kept");
    while (true) {
      std::this_thread::sleep_for(kPeriod);
      std::vector<Kept> all;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        all.swap(kept_);
      }
      // Freed outside the lock: this is the framework's memory.
      std::vector<Kept> left;
      for (Kept& one : all) {
        if (!one.event->Happened()) left.push_back(std::move(one));
      }
      all.clear();
      std::lock_guard<std::mutex> lock(mutex_);
      for (Kept& one : left) kept_.push_back(std::move(one));
      running_ = !kept_.empty();
      if (!running_) return;
    }
  }

  std::mutex mutex_;  // guards the rest
  std::vector<Kept> kept_;
  bool running_ = false;  // the thread runs
  bool said_ = false;
};

}  // namespace

void KeepUntil(std::shared_ptr<CudaEvent> event, std::shared_ptr<void> memory) {
  if (event == nullptr) return KeepForever(std::move(memory));
  KeptMemory::Get().Add(std::move(event), std::move(memory));
}

void KeepForever(std::shared_ptr<void> kept) {
  static std::mutex* const mutex = new std::mutex();  // guards everything
  static auto* const all = new std::vector<std::shared_ptr<void>>();
  std::lock_guard<std::mutex> lock(*mutex);
  all->push_back(std::move(kept));
}

}  // namespace tfring
