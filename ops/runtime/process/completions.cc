#include "ops/runtime/process/completions.h"

#include <cfenv>
#include <iterator>
#include <mutex>
#include <utility>

namespace tfring {
namespace {

// Whose `done` this thread of a crew runs.
thread_local const void* current_queue = nullptr;

}  // namespace

struct Completions::Queue {
  // What is there now.
  void RunAll() {
    std::vector<FinishedCall> taken;
    {
      std::lock_guard<std::mutex> lock(mutex);
      taken.swap(calls);
    }
    for (FinishedCall& finished : taken) {
      // Destroyed, with all that it holds, before the next one begins.
      const FinishedCall call = std::move(finished);
      if (call.call.done) call.call.done(call.status);
    }
  }

  std::mutex mutex;
  std::vector<FinishedCall> calls;  // guarded by mutex
};

Completions::Completions(Crew* crew)
    : queue_(std::make_shared<Queue>()),
      crew_(crew),
      duty_(crew->Open(Crew::Adds::kAnyTime, [queue = queue_](TimePoint) {
        // This thread also adds up: what a `done` leaves of rounding or of flushing to zero would
        // change bits of later collectives.
        std::fenv_t arithmetic;
        std::fegetenv(&arithmetic);
        current_queue = queue.get();
        queue->RunAll();
        current_queue = nullptr;
        std::fesetenv(&arithmetic);
        return false;
      })) {}

void Completions::Push(std::vector<FinishedCall> calls) {
  if (calls.empty()) return;
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    if (queue_->calls.empty()) {
      queue_->calls = std::move(calls);
    } else {
      std::move(calls.begin(), calls.end(), std::back_inserter(queue_->calls));
    }
  }
  if (!crew_->Add(duty_)) queue_->RunAll();
}

bool Completions::Stop(TimePoint deadline) { return crew_->Close(duty_, deadline); }

bool Completions::IsCurrent() const { return current_queue == queue_.get(); }

bool Completions::IsAny() { return current_queue != nullptr; }

}  // namespace tfring
