#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_GOODBYES_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_GOODBYES_H_

#include <utility>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/engine/limits.h"
#include "ops/runtime/protocol/message/departure.h"

namespace tfring {

// The goodbyes that rank 0 has not passed on to the others yet. Part of the engine.
class Goodbyes {
 public:
  void Add(Departure departure) { waiting_.push_back(std::move(departure)); }
  void Clear() { waiting_.clear(); }
  bool empty() const { return waiting_.empty(); }

  // When they should go out.
  TimePoint deadline() const { return waiting_.empty() ? kNever : not_before_; }

  // Hands over all goodbyes. Only the first few keep their error texts.
  std::vector<Departure> Take(TimePoint now) {
    std::vector<Departure> taken = std::exchange(waiting_, {});
    for (size_t i = kErrorsPassedOn; i < taken.size(); ++i) taken[i].error.clear();
    not_before_ = now + kGoodbyePause;
    return taken;
  }

 private:
  std::vector<Departure> waiting_;
  TimePoint not_before_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_GOODBYES_H_
