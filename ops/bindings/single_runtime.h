#ifndef TFRING_OPS_BINDINGS_SINGLE_RUNTIME_H_
#define TFRING_OPS_BINDINGS_SINGLE_RUNTIME_H_

#include <string>

namespace tfring {

// Two copies of libtfring_runtime.so in one process would be two runtimes with one set of peers:
// collectives would wait for each other for ever. Looks at what the dynamic linker has loaded and
// returns what is wrong: another copy exists, or this binding was joined to the runtime of another
// folder (the linker takes a library that is there already for one of the same SONAME). Empty when
// all is well.
std::string CheckSingleRuntime();

// The path of the runtime library in use.
std::string RuntimePath();

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_SINGLE_RUNTIME_H_
