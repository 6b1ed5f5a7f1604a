#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_KEPT_EVENTS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_KEPT_EVENTS_H_

#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/control_transport.h"
#include "ops/runtime/protocol/locked/lock_coordinator.h"
#include "ops/runtime/protocol/message/wire.h"

namespace tfring {

// Frames about requests and goodbyes that reached rank 0 during a locked schedule. Rank 0 reads
// them when the schedule is over. The table in engine.h shows the states of a call in a locked
// schedule. Part of the engine.
class KeptEvents {
 public:
  static bool Keeps(FrameType type);

  // A frame of a type that is kept. `early`: it came before the sender's kFrozen.
  void Add(const ControlEvent& frame, FrameType type, bool early);
  // The connection of a rank ended after its goodbye.
  void AddEnd(const ControlEvent& end);

  bool empty() const { return events_.empty(); }
  bool HasGoodbye(Rank peer) const;

  // Hands over all events except early requests of ranks that took the schedule: those calls are
  // part of it. `ranks` is null if the negotiation is over.
  std::vector<ControlEvent> Take(const LockCoordinator* ranks);

 private:
  struct Kept {
    ControlEvent event;
    FrameType type;
    bool early;
  };
  std::vector<Kept> events_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_KEPT_EVENTS_H_
