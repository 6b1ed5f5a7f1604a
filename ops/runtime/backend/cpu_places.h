#ifndef TFRING_OPS_RUNTIME_BACKEND_CPU_PLACES_H_
#define TFRING_OPS_RUNTIME_BACKEND_CPU_PLACES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// The order in which collectives go to the CPU backend. A caller may take a place before its
// collective is known; collectives in later places then wait here, without a thread. The CPU
// backend ends collectives in the order of Submit, so a completion belongs to the oldest.
// Thread-safe; outlives the CPU backend.
class CpuPlaces {
 public:
  using Ended = std::function<void(Completion)>;

  // `sink` gets the completions of what Submit was given.
  explicit CpuPlaces(CompletionSink sink) : sink_(std::move(sink)) {}

  // Call it first. Set null when the backend is destroyed: from then on collectives end at once.
  void SetBackend(CollectiveBackend* backend);

  // Takes the next place and runs the collective there.
  void Submit(Collective collective);

  // Takes the next place and keeps it until Run or GiveUp.
  uint64_t Take();
  // `ended` is called once, on a thread of the CPU backend or on this one.
  void Run(uint64_t place, Collective collective, Ended ended);
  void GiveUp(uint64_t place);

  // After an abort of the CPU backend: from now on nothing waits for a place.
  void Open();

  // What the CPU backend reports to.
  void OnCompletion(Completion completion);

 private:
  enum class State : uint8_t { kTaken, kReady, kGivenUp };
  struct Place {
    uint64_t number = 0;  // 0: of Submit
    State state = State::kReady;
    Collective collective;
    Ended ended;  // empty: the sink
  };
  Place* Find(uint64_t number);
  void Advance();
  void Start(Place* place);

  const CompletionSink sink_;
  std::mutex mutex_;  // guards the rest
  CollectiveBackend* backend_ = nullptr;
  bool open_ = false;
  uint64_t last_ = 0;
  std::deque<Place> waiting_;    // the first one is kTaken, unless `open_`
  std::deque<Ended> submitted_;  // to the backend, which has not ended them
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_CPU_PLACES_H_
