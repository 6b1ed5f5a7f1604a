#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CHECK_COLLECTIVE_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CHECK_COLLECTIVE_H_

#include <string>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// Which sizes, positions or pointers of a collective contradict each other, naming the tensor;
// empty if all fit together. Values from users and peers are checked before a collective is built,
// so a contradiction is a mistake of this runtime. Backends assert that the text is empty, because
// a contradiction would make them read or write foreign memory.
std::string FindContradiction(const Collective& collective);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_CHECK_COLLECTIVE_H_
