#ifndef TFRING_OPS_RUNTIME_PROCESS_COMPLETIONS_H_
#define TFRING_OPS_RUNTIME_PROCESS_COMPLETIONS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/crew/crew.h"
#include "ops/runtime/process/call_table.h"

namespace tfring {

// Runs `done` callbacks, in the order of Push and one at a time, and destroys the calls: a duty of
// the crew. They may run framework code for a long time and may call Enqueue, so
// nothing else of the runtime waits for them. Push is thread-safe; Stop is for the owner. Lives for
// one generation.
class Completions {
 public:
  // The crew, to which nothing more urgent may belong, must outlive this.
  explicit Completions(Crew* crew);

  // Takes the calls; their `done` runs soon, or at once on the caller's thread after Stop and where
  // the crew has no threads.
  void Push(std::vector<FinishedCall> calls);

  // Waits until what was pushed has run. False if a `done` has not returned by `deadline`; the rest
  // then runs when it does.
  bool Stop(TimePoint deadline);

  // Whether the caller is in a `done` of these; in one of any generation.
  bool IsCurrent() const;
  static bool IsAny();

 private:
  struct Queue;

  const std::shared_ptr<Queue> queue_;  // shared with the crew's threads
  Crew* const crew_;
  const size_t duty_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_COMPLETIONS_H_
