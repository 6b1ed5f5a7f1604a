#ifndef TFRING_OPS_XLA_XLA_OP_KERNEL_H_
#define TFRING_OPS_XLA_XLA_OP_KERNEL_H_

// TensorFlow's XlaOpKernel and XlaOpKernelContext without the rest of XLA. Their header includes
// XLA's client, its service and the evaluator of HLO, which take 20 s to compile. It mentions a few
// names of them in functions that tfring does not call. This file declares these names and defines
// the guards of the headers. If TensorFlow renames a guard, the compiler says that ValueInference
// is defined twice.
//
// Only TensorFlow makes and destroys an XlaOpKernelContext, so its last member, a ValueInference,
// may have a different size here. The kernels use the context by pointer.

#define TENSORFLOW_COMPILER_TF2XLA_XLA_COMPILER_H_
#define TENSORFLOW_COMPILER_TF2XLA_XLA_EXPRESSION_H_
#define XLA_HLO_BUILDER_VALUE_INFERENCE_H_
#define XLA_CLIENT_VALUE_INFERENCE_H_  // before TensorFlow 2.19

namespace tensorflow {
class XlaCompiler;
class XlaExpression;
}  // namespace tensorflow

namespace xla {
enum ValueInferenceMode { kValue = 0, kUpperBound, kLowerBound };
class ValueInference {};
}  // namespace xla

#include "tensorflow/compiler/tf2xla/xla_resource.h"
// This include needs the declarations above.
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

#endif  // TFRING_OPS_XLA_XLA_OP_KERNEL_H_
