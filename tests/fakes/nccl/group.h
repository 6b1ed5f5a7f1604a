#ifndef TFRING_TESTS_FAKES_NCCL_GROUP_H_
#define TFRING_TESTS_FAKES_NCCL_GROUP_H_

#include "tests/fakes/nccl/communicator.h"

namespace fake_nccl {

// The calling thread's group of calls (ncclGroupStart to ncclGroupEnd).
bool InGroup();
// Into the thread's group, or, without one, a group of its own.
ncclResult_t Submit(ncclComm_t comm, const Call& call);

}  // namespace fake_nccl

#endif  // TFRING_TESTS_FAKES_NCCL_GROUP_H_
