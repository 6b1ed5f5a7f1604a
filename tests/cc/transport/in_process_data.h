#ifndef TFRING_TESTS_CC_TRANSPORT_IN_PROCESS_DATA_H_
#define TFRING_TESTS_CC_TRANSPORT_IN_PROCESS_DATA_H_

#include <memory>

#include "ops/runtime/interfaces/data_transport.h"

namespace tfring {

// Data streams between all ranks inside one process, through bounded pipes, so that sends and
// receives move a part as they do on sockets. Endpoints behave as DataTransport says and may be
// used from different threads. The hub may be destroyed before its endpoints. An endpoint that is
// destroyed without Close looks to its peers like a process that died.
class InProcessDataHub {
 public:
  explicit InProcessDataHub(int size, size_t pipe_bytes = 64 << 10);
  ~InProcessDataHub();

  // Once per rank.
  std::unique_ptr<DataTransport> Endpoint(Rank rank);

 private:
  struct State;
  class EndpointImpl;
  std::shared_ptr<State> state_;
};

}  // namespace tfring

#endif  // TFRING_TESTS_CC_TRANSPORT_IN_PROCESS_DATA_H_
