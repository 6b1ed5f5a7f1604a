#ifndef TFRING_TESTS_FAKES_NCCL_KERNEL_RUN_H_
#define TFRING_TESTS_FAKES_NCCL_KERNEL_RUN_H_

#include <vector>

#include "tests/fakes/nccl/communicator.h"

namespace fake_nccl {

// The work of one kernel: the group's collectives in order, then all of its transfers at once.
// Returns when it is done or the communicator was aborted. One kernel of a communicator at a time.
void RunCalls(Communicator* communicator, const std::vector<Call>& calls);

}  // namespace fake_nccl

#endif  // TFRING_TESTS_FAKES_NCCL_KERNEL_RUN_H_
