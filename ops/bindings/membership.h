#ifndef TFRING_OPS_BINDINGS_MEMBERSHIP_H_
#define TFRING_OPS_BINDINGS_MEMBERSHIP_H_

#include <pybind11/pybind11.h>

#include <string>

namespace tfring {

// Adds the submodule `membership`: the state machines of elastic jobs and their messages. Their
// calls are short and keep the GIL, which makes the machines safe to use from any thread.
void DefineMembership(pybind11::module_& module);

// Returns the text as a str. Text from another process may hold invalid UTF-8, which is replaced.
pybind11::str TextOf(const std::string& text);

// For membership.cc: the submodule's classes from messages.h, and from worker.h and coordinator.h.
void DefineMembershipMessages(pybind11::module_& module);
void DefineMembershipMachines(pybind11::module_& module);

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_MEMBERSHIP_H_
