#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_STALL_INSPECTOR_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_STALL_INSPECTOR_H_

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Knows how long each tensor has been waited for by some ranks and when to say so: first after
// stall_warning, then once per stall_warning; never again after stall_shutdown. Times passed in
// must not go backwards. Constant work per tensor. Control thread of rank 0.
class StallInspector {
 private:
  struct Watched {
    uint64_t handle;
    TimePoint since;
    TimePoint next_warning;
    std::list<Watched*>::iterator turn;
  };

 public:
  using Token = std::list<Watched>::iterator;

  explicit StallInspector(const Config& config)
      : warning_(config.stall_warning), shutdown_(config.stall_shutdown) {}

  Token Watch(uint64_t handle, TimePoint now);
  void Forget(Token token);

  TimePoint next_deadline() const;

  // The tensors to warn about now; counts as having warned.
  std::vector<uint64_t> TakeWarnings(TimePoint now);

  // A tensor that has passed stall_shutdown, or null. Valid until the next call.
  const uint64_t* Expired(TimePoint now) const;

 private:
  Duration warning_;
  Duration shutdown_;
  std::list<Watched> by_age_;
  std::list<Watched*> turns_;  // by next_warning: both kinds of turn come one warning_ after a now
};

// One rank in a stall report.
struct StallView {
  Rank rank = 0;
  bool ready = false;
  bool joined = false;    // takes no part, and is not waited for
  std::string waits_for;  // missing ranks: what they asked for instead, "" for nothing
};

// "allreduce of tensor 'a' has waited 60 s: ranks 0, 2 are ready; rank 1 is missing and waits for
// allreduce of tensor 'b' instead ..."
std::string StallMessage(const std::string& what, Duration waited,
                         const std::vector<StallView>& ranks);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_STALL_INSPECTOR_H_
