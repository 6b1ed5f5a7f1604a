#include "ops/runtime/backend/reduction/reduce_kernels_impl.h"
#include "ops/runtime/backend/reduction/reduce_variants.h"

namespace tfring {

const ReduceKernels* Avx2Kernels(DataType dtype) { return KernelTable(dtype); }

}  // namespace tfring
