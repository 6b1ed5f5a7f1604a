#ifndef TFRING_TESTS_CC_TRANSPORT_IN_PROCESS_H_
#define TFRING_TESTS_CC_TRANSPORT_IN_PROCESS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "ops/runtime/interfaces/control_transport.h"
#include "ops/runtime/interfaces/data_transport.h"

// Transports between ranks that are threads of one test. Endpoints behave as ControlTransport and
// DataTransport say, may be used from different threads and may outlive their hub. An endpoint that
// is destroyed without Close looks to its peers like a process that died.
namespace tfring {

// Control connections between rank 0 and every other rank.
class InProcessControlHub {
 public:
  explicit InProcessControlHub(int size);

  // To be called once per rank.
  std::unique_ptr<ControlTransport> Endpoint(Rank rank);

 private:
  struct State;
  class End;
  std::shared_ptr<State> state_;
};

// Data streams between all ranks, of bounded capacity, so that sends and receives move only a part,
// as they do on sockets.
class InProcessDataHub {
 public:
  struct Options {
    int64_t capacity = 64 << 10;  // of one stream, in bytes
    uint32_t seed = 0;  // not 0: every call moves a random part of what it could, or nothing
    bool peek = false;  // received bytes can be seen without copying
    // Which ranks have a stream, if not all.
    std::function<bool(Rank, Rank)> connected = [](Rank, Rank) { return true; };
  };

  explicit InProcessDataHub(int size) : InProcessDataHub(size, Options()) {}
  InProcessDataHub(int size, Options options);

  // To be called once per rank.
  std::unique_ptr<DataTransport> Endpoint(Rank rank);

  // From now on every call that moves bytes to or from `rank` fails.
  void Break(Rank rank);

  // From now on what `from` sends to `to` is taken and never arrives, as on a path that is cut;
  // both see trouble.
  void Cut(Rank from, Rank to);

  // Blocks until all ranks together have sent this many bytes.
  void WaitForBytes(int64_t bytes);

 private:
  struct State;
  class End;
  std::shared_ptr<State> state_;
};

}  // namespace tfring

#endif  // TFRING_TESTS_CC_TRANSPORT_IN_PROCESS_H_
