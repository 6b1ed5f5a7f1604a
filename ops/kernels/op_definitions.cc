// The ops as TensorFlow's graphs know them: attributes, shapes, statefulness. Every collective is
// stateful and takes a resource of its own, `channel`: a stateless op would be folded, merged or
// pruned, and stateful ops without resources are run one after another in program order, which
// stops overlap and hangs ranks that trace in different orders.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfring {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Inputs are the N tensors and the channel.
absl::Status SameShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

// The ranks may have different numbers of rows, and how many ranks there are is a matter of run
// time.
absl::Status UnknownRows(InferenceContext* c) {
  ShapeHandle input;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &input));
  if (!c->RankKnown(input)) {
    c->set_output(0, c->UnknownShape());
    return absl::OkStatus();
  }
  ShapeHandle output;
  TF_RETURN_IF_ERROR(c->ReplaceDim(input, 0, c->UnknownDim(), &output));
  c->set_output(0, output);
  return absl::OkStatus();
}

#define TFRING_MOVABLE_TYPES                                                                 \
  "{bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, " \
  "double, complex64, complex128}"

// Distributed communication: TensorFlow would otherwise replace our UnavailableError by another.
// Scale factors travel as text: an attribute of type float would round them to 32 bits.
REGISTER_OP("TfringAllreduce")
    .Attr("T: {half, bfloat16, float, double, int8, uint8, int32, int64}")
    .Attr("N: int >= 1")
    .Attr("tensor_name: string")
    .Attr("reduce_op: int")
    .Attr("prescale_factor: string = '1'")
    .Attr("postscale_factor: string = '1'")
    .Attr("process_set_id: int = 0")
    .Attr("layout_hash: int = 0")
    .Attr("group: bool = false")
    .Input("tensors: N * T")
    .Input("channel: resource")
    .Output("reduced: N * T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc("Reduces a list of tensors over all ranks as one collective.");

REGISTER_OP("TfringAllgather")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("tensor_name: string")
    .Attr("process_set_id: int = 0")
    .Input("tensor: T")
    .Input("channel: resource")
    .Output("gathered: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(UnknownRows)
    .Doc("Concatenates the tensors of all ranks along the first dimension, in order of rank.");

REGISTER_OP("TfringBroadcast")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("N: int >= 1")
    .Attr("tensor_name: string")
    .Attr("root_rank: int")
    .Attr("process_set_id: int = 0")
    .Input("tensors: N * T")
    .Input("channel: resource")
    .Output("values: N * T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc("Gives every rank the tensors of the root rank.");

// Stateful, so that a graph never contains today's size or rank as a constant.
#define TFRING_REGISTER_TOPOLOGY_OP(name)                   \
  REGISTER_OP(name)                                         \
      .Attr("process_set_id: int = 0")                      \
      .Output("value: int32")                               \
      .SetIsStateful()                                      \
      .SetShapeFn(tensorflow::shape_inference::ScalarShape) \
      .Doc("Read from the runtime each time it runs.");

TFRING_REGISTER_TOPOLOGY_OP("TfringRank")
TFRING_REGISTER_TOPOLOGY_OP("TfringSize")
TFRING_REGISTER_TOPOLOGY_OP("TfringLocalRank")
TFRING_REGISTER_TOPOLOGY_OP("TfringLocalSize")
TFRING_REGISTER_TOPOLOGY_OP("TfringCrossRank")
TFRING_REGISTER_TOPOLOGY_OP("TfringCrossSize")
TFRING_REGISTER_TOPOLOGY_OP("TfringProcessSetIncluded")

}  // namespace
}  // namespace tfring
