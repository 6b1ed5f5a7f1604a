#ifndef TFRING_TESTS_CC_TRANSPORT_FAKE_MPI_H_
#define TFRING_TESTS_CC_TRANSPORT_FAKE_MPI_H_

#include "ops/runtime/base/types.h"
#include "ops/runtime/transport/mpi_functions.h"

// An MPI between threads of one process. A message gets on in calls of the receiver and then of the
// sender, and at no other time, as in a real one.
namespace tfring {

const MpiFunctions* FakeMpi();

// A new communicator, and what one of its ranks passes to `open`.
int NewFakeMpiWorld(int size);
int FakeMpiHandle(int world, Rank rank);

// What state() says from now on, to all.
void SetFakeMpiState(MpiFunctions::State state);
// From now on requests between any two ranks fail, or no longer.
void BreakFakeMpi(bool broken);

// How many ranks have opened a communicator and not closed it; requests that are not complete.
int OpenFakeMpiCommunicators();
int OpenFakeMpiRequests();

}  // namespace tfring

#endif  // TFRING_TESTS_CC_TRANSPORT_FAKE_MPI_H_
