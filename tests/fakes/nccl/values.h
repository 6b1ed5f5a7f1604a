#ifndef TFRING_TESTS_FAKES_NCCL_VALUES_H_
#define TFRING_TESTS_FAKES_NCCL_VALUES_H_

#include <array>
#include <cstddef>

#include "tests/fakes/nccl/nccl_api.h"

namespace fake_nccl {

// Arithmetic as NCCL does it: 16-bit floats are rounded after each step, integers wrap, the average
// of integers is cut towards zero, that of floats multiplies by 1/n in their own type before the
// addition. Only the order of the additions may differ from NCCL's.

bool IsDataType(int dtype);
size_t ElementBytes(int dtype);
const char* DataTypeName(int dtype);
const char* OperatorName(int op);

using Scalar = std::array<char, 8>;  // one element of any type

// 1/n, rounded to a floating-point type. Integers have none: false.
bool Fraction(int dtype, int n, Scalar* scalar);

// data[i] *= scalar.
void Scale(int dtype, const Scalar& scalar, char* data, size_t count);

// into[i] = into[i] op with[i], for ncclSum (ncclAvg), ncclProd, ncclMax, ncclMin.
void Combine(int dtype, int op, char* into, const char* with, size_t count);

// data[i] /= n, of integers.
void DivideIntegers(int dtype, int n, char* data, size_t count);

}  // namespace fake_nccl

#endif  // TFRING_TESTS_FAKES_NCCL_VALUES_H_
