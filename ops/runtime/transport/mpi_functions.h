#ifndef TFRING_OPS_RUNTIME_TRANSPORT_MPI_FUNCTIONS_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_MPI_FUNCTIONS_H_

#include <cstdint>

namespace tfring {

// A request of MPI, whatever that MPI makes of it. 0: none.
using MpiRequest = uint64_t;

// What tfring needs of MPI, in types that do not depend on the implementation. A plug-in per binary
// interface of MPI fills it in (ops/mpi). Where a function returns an int, that is an error code of
// MPI, 0 for none. No call blocks. Thread-safe, as MPI is with MPI_THREAD_MULTIPLE.
struct MpiFunctions {
  // How this table is laid out: the runtime refuses plug-ins with another number.
  int layout;

  enum State : int { kReady, kNotStarted, kEnded, kOneThread };
  // Whether this process can use MPI now, from any thread.
  State (*state)();

  // A communicator by its number in Fortran; null if there is none. Its errors are returned from
  // now on. `close` frees it, which is for the end of all use by all ranks.
  void* (*open)(int fortran_handle, int* rank, int* size);
  int (*close)(void* communicator);

  // Begins a send that is complete once the receiver has begun to take it. The memory has to stay
  // until then.
  int (*send)(void* communicator, const void* data, int bytes, int to, MpiRequest* request);
  // Begins a receive of at most `bytes`.
  int (*receive)(void* communicator, void* data, int bytes, int from, MpiRequest* request);
  // `*done`: the request is complete, and 0 now. `*bytes` of a receive: what came, -1 if it was
  // cancelled.
  int (*test)(MpiRequest* request, bool* done, int* bytes);
  // Asks for the end of a receive, which test() reports.
  int (*cancel)(MpiRequest* request);

  void (*error_text)(int code, char* text, int size);
};

constexpr int kMpiFunctionsLayout = 1;
// The one function that a plug-in exports, of this type.
constexpr const char* kMpiFunctionsSymbol = "tfring_mpi_functions";
using GetMpiFunctions = const MpiFunctions* (*)();

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_MPI_FUNCTIONS_H_
