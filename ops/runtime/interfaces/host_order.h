#ifndef TFRING_OPS_RUNTIME_INTERFACES_HOST_ORDER_H_
#define TFRING_OPS_RUNTIME_INTERFACES_HOST_ORDER_H_

#include <functional>
#include <memory>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// A place in the order in which a rank's host backend runs collectives: what came before it runs
// before, what comes after waits until the place is used or given up. All members of a collective
// reserve at the same point of the sequence, so their hosts run the same things in the same order,
// whenever each of them decides what the place is for. Used once, from any thread; destroying an
// unused place gives it up. What is in flight ends through the Abort of the owner.
class HostPlace {
 public:
  virtual ~HostPlace() = default;

  // Runs a collective whose buffers are in host memory and stay valid until `ended`, which is
  // called once, on a thread of the backend, and must not block. Nothing goes to the rank's sink.
  virtual void Run(Collective collective, std::function<void(Completion)> ended) = 0;

  // Stages a collective of tensors in device memory through the host. Its completions go to the
  // rank's sink, as if it had come with the path kHost.
  virtual void Stage(Collective collective) = 0;
};

// Gives the device backend places among the host's collectives. Owned by the backend that routes
// collectives by their path, and outlives the device backend.
class HostOrder {
 public:
  virtual ~HostOrder() = default;

  // The next place. Only inside CollectiveBackend::Submit of the device backend, whose calls are in
  // the order of the sequence. Does not block.
  virtual std::unique_ptr<HostPlace> Reserve() = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_HOST_ORDER_H_
