#ifndef TFRING_OPS_BINDINGS_SINGLE_RUNTIME_H_
#define TFRING_OPS_BINDINGS_SINGLE_RUNTIME_H_

#include <string>

namespace tfring {

// Returns an error text if this process uses more than one libtfring_runtime.so, else "".
//
// Two copies are two runtimes with the same peers, and their collectives wait for each other
// forever. This happens when a process imports two tfring installations. Either both copies are
// loaded, or the dynamic linker gives the second binding the first installation's runtime, because
// it loads a library only once under one name (SONAME).
std::string CheckSingleRuntime();

// Returns the path of the runtime library that this binding uses.
std::string RuntimePath();

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_SINGLE_RUNTIME_H_
