#ifndef TFRING_OPS_KERNELS_ABORT_CAUSE_H_
#define TFRING_OPS_KERNELS_ABORT_CAUSE_H_

#include "ops/runtime/base/status.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace tfring {

// Returns the error with which a step's rendezvous was aborted; Ok if it was not. Never blocks.
absl::Status AbortCause(tensorflow::RendezvousInterface* rendezvous);

// Returns the cause for the other ranks: the code and one line with the name of the failed node. If
// the cause is not known (Ok), the text says that the step was cancelled.
Status ShortCause(const absl::Status& cause);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_ABORT_CAUSE_H_
