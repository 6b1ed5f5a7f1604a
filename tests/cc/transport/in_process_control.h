#ifndef TFRING_TESTS_CC_TRANSPORT_IN_PROCESS_CONTROL_H_
#define TFRING_TESTS_CC_TRANSPORT_IN_PROCESS_CONTROL_H_

#include <memory>

#include "ops/runtime/interfaces/control_transport.h"

namespace tfring {

// The control star inside one process: rank 0 is connected to everybody. Endpoints behave as
// ControlTransport says and may be used from different threads. The hub may be destroyed before its
// endpoints. An endpoint that is destroyed without Close looks to its peers like a process that
// died.
class InProcessControlHub {
 public:
  explicit InProcessControlHub(int size);
  ~InProcessControlHub();

  // Once per rank.
  std::unique_ptr<ControlTransport> Endpoint(Rank rank);

 private:
  struct State;
  class EndpointImpl;
  std::shared_ptr<State> state_;
};

}  // namespace tfring

#endif  // TFRING_TESTS_CC_TRANSPORT_IN_PROCESS_CONTROL_H_
