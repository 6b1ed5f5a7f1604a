#ifndef TFRING_OPS_KERNELS_ABORT_CAUSE_H_
#define TFRING_OPS_KERNELS_ABORT_CAUSE_H_

#include "ops/runtime/base/status.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace tfring {

// With which error a step's rendezvous was aborted; Ok if it was not. Never blocks.
absl::Status AbortCause(tensorflow::RendezvousInterface* rendezvous);

// What other ranks are told: the code and one line, with the name of the node that failed. Where
// the cause is not known (Ok), that the step was cancelled.
Status ShortCause(const absl::Status& cause);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_ABORT_CAUSE_H_
