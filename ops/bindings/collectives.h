#ifndef TFRING_OPS_BINDINGS_COLLECTIVES_H_
#define TFRING_OPS_BINDINGS_COLLECTIVES_H_

#include <pybind11/pybind11.h>

namespace tfring {

// Adds the collectives on numpy arrays to the module, each as a call that waits and as one that
// returns a Handle (`..._async`).
void DefineCollectives(pybind11::module_& module);

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_COLLECTIVES_H_
