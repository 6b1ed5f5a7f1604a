#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_VARIANTS_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_VARIANTS_H_

#include "ops/runtime/backend/reduction/reduce_kernels.h"

namespace tfring {

// The same kernels as different instruction sets compile them. On other processors than x86 the
// last two are the first.
const ReduceKernels* BaseKernels(DataType dtype);
const ReduceKernels* Avx2Kernels(DataType dtype);
const ReduceKernels* Avx512Kernels(DataType dtype);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_REDUCE_VARIANTS_H_
