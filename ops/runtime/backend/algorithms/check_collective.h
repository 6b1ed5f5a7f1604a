#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CHECK_COLLECTIVE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CHECK_COLLECTIVE_H_

#include <string>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// Which sizes, positions or pointers of a collective contradict each other, naming the tensor;
// empty if all fit together. What users and peers say has been checked before a collective is
// built, so that a contradiction is a mistake of this runtime. Backends assert that there is none,
// because it would make them read or write memory that belongs to somebody else.
std::string FindContradiction(const Collective& collective);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CHECK_COLLECTIVE_H_
