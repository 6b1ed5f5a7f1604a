#ifndef TFRING_OPS_RUNTIME_TRANSPORT_MPI_FUNCTIONS_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_MPI_FUNCTIONS_H_

#include <cstdint>

namespace tfring {

// An MPI request in the representation of the loaded MPI. 0: none.
using MpiRequest = uint64_t;

// The MPI functions that tfring uses, in types that do not depend on the implementation. A plug-in
// for each binary interface of MPI fills the table in (ops/mpi). An int result is an MPI error
// code, 0 for success. No call blocks. Thread-safe, as MPI is with MPI_THREAD_MULTIPLE.
struct MpiFunctions {
  // The layout of this table. The runtime refuses plug-ins with a different number.
  int layout;

  enum State : int { kReady, kNotStarted, kEnded, kOneThread };
  // Returns whether this process can use MPI now, from any thread.
  State (*state)();

  // Returns the communicator with this Fortran number, or null if there is none, and makes it
  // return errors. `close` frees it; call it when no rank uses the communicator any more.
  void* (*open)(int fortran_handle, int* rank, int* size);
  int (*close)(void* communicator);

  // Begins a send, which completes once the receiver has begun to take the message. `data` must
  // stay valid until then.
  int (*send)(void* communicator, const void* data, int bytes, int to, MpiRequest* request);
  // Begins a receive of at most `bytes`.
  int (*receive)(void* communicator, void* data, int bytes, int from, MpiRequest* request);
  // Sets `*done` to whether the request is complete, and `*request` to 0 if so. `*bytes` of a
  // receive is the number of bytes received, or -1 if it was cancelled.
  int (*test)(MpiRequest* request, bool* done, int* bytes);
  // Cancels a receive. test() reports when it has ended.
  int (*cancel)(MpiRequest* request);

  void (*error_text)(int code, char* text, int size);
};

constexpr int kMpiFunctionsLayout = 1;
// The symbol that a plug-in exports: one function of this type.
constexpr const char* kMpiFunctionsSymbol = "tfring_mpi_functions";
using GetMpiFunctions = const MpiFunctions* (*)();

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_MPI_FUNCTIONS_H_
