#ifndef TFRING_TESTS_FAKES_NCCL_VALUES_H_
#define TFRING_TESTS_FAKES_NCCL_VALUES_H_

#include <cstddef>

#include "tests/fakes/nccl/nccl_api.h"

namespace fake_nccl {

// Arithmetic as NCCL does it: 16-bit floats are rounded after each step, integers wrap. Only the
// order of the additions may differ from NCCL's.

bool IsDataType(int dtype);
size_t ElementBytes(int dtype);
const char* DataTypeName(int dtype);
const char* OperatorName(int op);

// into[i] = into[i] op with[i], for ncclSum, ncclProd, ncclMax, ncclMin.
void Combine(int dtype, int op, char* into, const char* with, size_t count);

}  // namespace fake_nccl

#endif  // TFRING_TESTS_FAKES_NCCL_VALUES_H_
