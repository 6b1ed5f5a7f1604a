#ifndef TFRING_OPS_RUNTIME_INTERFACES_CONTROL_TRANSPORT_H_
#define TFRING_OPS_RUNTIME_INTERFACES_CONTROL_TRANSPORT_H_

#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

struct ControlEvent {
  enum class Kind {
    kFrame,
    kAlive,  // bytes came, but no whole frame
    kPeerLost,
  };
  Kind kind = Kind::kFrame;
  Rank peer = kNoRank;
  std::string frame;   // kFrame: one whole frame as the peer sent it
  std::string reason;  // kPeerLost: "connection closed", "process 4711 ended", ...
};

// Small ordered messages between ranks. Used by the control thread alone, except Wake(), which any
// thread may call, and Send(), which one other thread at a time may call, also while the control
// thread is in Wait(). A broken connection is a lost peer; there is no reconnect. After kPeerLost
// for a peer nothing more comes from it, and frames that arrived before are delivered first.
class ControlTransport {
 public:
  virtual ~ControlTransport() = default;

  // Queues `frame`; never blocks. Frames to a lost peer are dropped.
  virtual void Send(Rank to, std::string frame) = 0;

  // Sleeps until there is an event, Wake() was called or `deadline` (CLOCK_MONOTONIC) has passed;
  // appends what happened to `events`. Also pushes out queued frames.
  virtual void Wait(TimePoint deadline, std::vector<ControlEvent>* events) = 0;

  virtual void Wake() = 0;

  // Sends what is queued, shuts down writing and reads to end of file from every peer, until
  // `deadline`; then closes. Nothing may be called afterwards.
  virtual void Close(TimePoint deadline) = 0;

  // How often Wait() woke from sleep. Any thread.
  virtual int64_t wakeups() const { return 0; }
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_CONTROL_TRANSPORT_H_
