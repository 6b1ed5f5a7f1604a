#ifndef TFRING_OPS_RUNTIME_CREW_CREW_H_
#define TFRING_OPS_RUNTIME_CREW_CREW_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/crew/worker_thread.h"

namespace tfring {

// Threads that share duties, of which those that were opened first are the more urgent: as a Roster
// says. What one thread does to carry out a duty happens before what the next one does for it. A
// thread that ends one duty with work for another goes on with that, and wakes nobody. Other
// threads may be guests for a moment. All is thread-safe, but Start and Join are for the owner.
class Crew {
 public:
  // When the work of a duty adds work to others. kLast: at its end only, so that its thread will
  // see to it, and no other has to be woken.
  enum class Adds : uint8_t { kLast, kAnyTime };

  Crew();
  // Leaves its threads alone; they end when what they do is done.
  ~Crew();

  // As many as there will be duties. Internal if the system refuses a thread; then there is none.
  Status Start(size_t threads);

  // `work` does what there is, or a part of it, and says whether more is left. It waits for nothing
  // beyond `until`, which is kNever on threads of the crew. It is called by one thread at a time,
  // and may be called when there is nothing. It has to do without this object, which may be gone.
  using Work = std::function<bool(TimePoint until)>;
  size_t Open(Adds adds, Work work);

  // There is work. False if nobody will do it: the duty is closed, or there are no threads.
  bool Add(size_t duty);

  // Waits until all that was added is done; then there is no more work. False if it is not done by
  // `deadline`: then the duty closes later, by itself. Not on a thread of this crew.
  bool Close(size_t duty, TimePoint deadline = kNever);

  // The threads end as soon as every duty is closed. False, and they are left alone, if they have
  // not ended by `deadline`. Not on a thread of this crew.
  bool Join(TimePoint deadline = kNever);

  // A thread that is about to add work, and will see to it itself: between the two, Add wakes
  // nobody for it. Carries out what nobody is at, begins nothing after `until` but its first duty,
  // and leaves the rest to the crew. A thread is a guest of one crew at a time; a second Guest does
  // nothing, but within a duty that may add work at any time.
  class Guest {
   public:
    explicit Guest(Crew* crew);
    void CarryOut(TimePoint until);
    // Must have carried out, or added nothing.
    ~Guest();

   private:
    Crew* const crew_;  // null: does nothing
  };

  // How often one of the threads woke from sleep.
  int64_t wakeups() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // with the threads, which may outlive this object
  std::vector<std::unique_ptr<WorkerThread>> threads_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_CREW_CREW_H_
