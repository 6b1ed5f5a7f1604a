#ifndef TFRING_OPS_RUNTIME_CREW_ROSTER_H_
#define TFRING_OPS_RUNTIME_CREW_ROSTER_H_

#include <cstddef>
#include <vector>

namespace tfring {

// Who of a crew of threads does what. There are duties, in the order of their urgency, each with
// work that comes bit by bit, and threads that sleep or carry out a duty. A duty is carried out by
// one thread at a time. A thread that has carried out one looks for the next by itself; a sleeping
// thread is woken only for work that no thread is about to find. Decides only: the Crew has the
// threads and the lock. With as many threads as duties none ever waits for another.
class Roster {
 public:
  static constexpr size_t kNothing = ~size_t{0};

  // A new duty, less urgent than those before it.
  size_t Open();

  // The duty has work. False, and nothing changes, if it is closed.
  bool Add(size_t duty);

  // Of a thread that looks for work: the most urgent duty that has any, which is its own until
  // Carried. kNothing if there is none.
  size_t Take();
  // It has done what there was, or a part of it: `more` is left.
  void Carried(size_t duty, bool more);

  // Whether to wake a sleeping thread, which then counts as woken. To be asked after Add, unless
  // the thread that adds is about to look for work itself, and after Take.
  bool Wakes();

  // A thread has found nothing, and sleeps; it does not any more, for whatever reason.
  void Sleeps() { ++sleeping_; }
  void Woke();

  // Lets no work in from the moment on in which it has none and nobody carries it out.
  void Close(size_t duty) { duties_[duty].closing = true; }
  bool Closed(size_t duty) const;
  bool AllClosed() const;

 private:
  struct Duty {
    bool work = false;
    bool carried = false;
    bool closing = false;
  };
  std::vector<Duty> duties_;
  size_t sleeping_ = 0;
  size_t woken_ = 0;  // of these: were woken, and have not run yet
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_CREW_ROSTER_H_
