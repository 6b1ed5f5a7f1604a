#ifndef TFRING_OPS_RUNTIME_TRANSPORT_MPI_LIBRARY_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_MPI_LIBRARY_H_

#include <string>

#include "ops/runtime/base/status.h"
#include "ops/runtime/transport/mpi_functions.h"

namespace tfring {

// How this process uses MPI, as the bootstrap found it.
struct MpiUse {
  std::string plugin;    // path of the plug-in for the loaded MPI; empty: MPI is not used
  std::string module;    // path of the library that loaded MPI: mpi4py's extension module
  int communicator = 0;  // Fortran number of a communicator of all ranks, for bulk data only
};

// Loads the plug-in. The MPI that `use.module` has loaded resolves its symbols and becomes visible
// to the whole process; no second MPI is loaded. FailedPrecondition says why MPI cannot be used.
// The table lives as long as the process.
Result<const MpiFunctions*> LoadMpi(const MpiUse& use);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_MPI_LIBRARY_H_
