#ifndef TFRING_OPS_BINDINGS_MEMBERSHIP_H_
#define TFRING_OPS_BINDINGS_MEMBERSHIP_H_

#include <pybind11/pybind11.h>

namespace tfring {

// Adds the submodule `membership`: the state machines of elastic jobs and their messages. Their
// calls are short and keep the GIL, which makes the machines safe to use from any thread.
void DefineMembership(pybind11::module_& module);

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_MEMBERSHIP_H_
