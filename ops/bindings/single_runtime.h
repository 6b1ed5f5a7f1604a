#ifndef TFRING_OPS_BINDINGS_SINGLE_RUNTIME_H_
#define TFRING_OPS_BINDINGS_SINGLE_RUNTIME_H_

#include <string>

namespace tfring {

// Returns what is wrong if this process uses more than one libtfring_runtime.so, else "".
//
// Two copies would be two runtimes with the same peers, and their collectives would wait for each
// other for ever. It happens when two tfring installations are imported. Either both copies are
// loaded, or the dynamic linker gives the second binding the first installation's runtime, because
// it does not load a library twice under one name (SONAME).
std::string CheckSingleRuntime();

// The path of the runtime library that this binding uses.
std::string RuntimePath();

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_SINGLE_RUNTIME_H_
