#ifndef TFRING_OPS_BINDINGS_COLLECTIVES_H_
#define TFRING_OPS_BINDINGS_COLLECTIVES_H_

#include <pybind11/pybind11.h>

namespace tfring {

// Adds the collectives on numpy arrays to the module. Each function waits and returns the result;
// only `allreduce_async` returns a Handle.
void DefineCollectives(pybind11::module_& module);

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_COLLECTIVES_H_
