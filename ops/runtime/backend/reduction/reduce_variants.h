#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_VARIANTS_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_VARIANTS_H_

#include "ops/runtime/backend/reduction/reduce_kernels.h"

namespace tfring {

// The same kernels, compiled for different instruction sets. On processors other than x86 all three
// are compiled in the same way.
const ReduceKernels* BaseKernels(DataType dtype);
const ReduceKernels* Avx2Kernels(DataType dtype);
const ReduceKernels* Avx512Kernels(DataType dtype);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_VARIANTS_H_
