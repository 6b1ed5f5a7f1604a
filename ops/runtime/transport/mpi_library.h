#ifndef TFRING_OPS_RUNTIME_TRANSPORT_MPI_LIBRARY_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_MPI_LIBRARY_H_

#include <string>

#include "ops/runtime/base/status.h"
#include "ops/runtime/transport/mpi_functions.h"

namespace tfring {

// How this process uses MPI, found out by the bootstrap.
struct MpiUse {
  std::string plugin;    // path of the plug-in for the MPI that is loaded; empty: MPI is not used
  std::string module;    // path of what has loaded that MPI: mpi4py's extension module
  int communicator = 0;  // Fortran number of a communicator of all ranks, for the data alone
};

// Loads the plug-in. Its symbols are resolved by the MPI that `use.module` has loaded, which all of
// the process can see from then on; another MPI is never loaded. FailedPrecondition says why it
// cannot be used. The table lives as long as the process.
Result<const MpiFunctions*> LoadMpi(const MpiUse& use);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_MPI_LIBRARY_H_
