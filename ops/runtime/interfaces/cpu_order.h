#ifndef TFRING_OPS_RUNTIME_INTERFACES_CPU_ORDER_H_
#define TFRING_OPS_RUNTIME_INTERFACES_CPU_ORDER_H_

#include <functional>
#include <memory>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// A place in the order in which a rank's CPU backend runs collectives. Later collectives wait until
// the place is used or given up. All members of a collective reserve at the same point of the
// sequence, so their CPU backends run the same collectives in the same order, no matter when each
// member decides what the place is for. Used once, from any thread; the destructor gives up an
// unused place. The owner's Abort ends what is in flight.
class CpuPlace {
 public:
  virtual ~CpuPlace() = default;

  // Runs a collective whose buffers are in CPU memory and stay valid until `ended`, which a thread
  // of the backend calls once and which must not block. Nothing goes to the rank's sink.
  virtual void Run(Collective collective, std::function<void(Completion)> ended) = 0;

  // Stages a collective of tensors in device memory through CPU memory. Its completions go to the
  // rank's sink, as if it had come with the path kCpu.
  virtual void Stage(Collective collective) = 0;
};

// Gives the device backend places among the CPU backend's collectives. Owned by the backend that
// routes collectives by their path, and outlives the device backend.
class CpuOrder {
 public:
  virtual ~CpuOrder() = default;

  // The next place. Only inside CollectiveBackend::Submit of the device backend, whose calls are in
  // the order of the sequence. Does not block.
  virtual std::unique_ptr<CpuPlace> Reserve() = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_CPU_ORDER_H_
