#ifndef TFRING_TESTS_FAKES_NCCL_KERNEL_H_
#define TFRING_TESTS_FAKES_NCCL_KERNEL_H_

#include <memory>
#include <vector>

#include "tests/fakes/nccl/communicator.h"

namespace fake_nccl {

// What a group is on the device. The calls' data goes through the files of the ranks in pieces: no
// rank reads another's device memory. A kernel waits for its peers on the stream's thread, and ends
// early, with nothing written from there on, when its communicator is aborted.

// The argument for RunKernel. The library keeps the kernel until it ran: a driver after a sticky
// error drops what is on its streams.
void* MakeKernel(std::shared_ptr<Communicator> communicator, std::vector<Call> calls);
void DropKernel(void* kernel);
void RunKernel(void* kernel);

}  // namespace fake_nccl

#endif  // TFRING_TESTS_FAKES_NCCL_KERNEL_H_
