#include "ops/runtime/backend/cpu/reduce_kernels_impl.h"
#include "ops/runtime/backend/cpu/reduce_variants.h"

namespace tfring {

const ReduceKernels* BaseKernels(DataType dtype) { return KernelTable(dtype); }

}  // namespace tfring
