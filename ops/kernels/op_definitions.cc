// The ops as TensorFlow's graphs know them: attributes, shapes, statefulness. Every collective is
// stateful and takes a resource of its own, `channel`: a stateless op would be folded, merged or
// pruned, and stateful ops without resources are run one after another in program order, which
// stops overlap and hangs ranks that trace in different orders.
//
// Distributed communication: TensorFlow would otherwise replace our UnavailableError by another.
// Scale factors travel as text: an attribute of type float would round them to 32 bits.

#include "ops/kernels/shape_functions.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tfring {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("TfringAllreduce")
    .Attr("T: " TFRING_REDUCIBLE_TYPES)
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

REGISTER_OP("TfringReducescatter")
    .Attr("T: " TFRING_REDUCIBLE_TYPES)
    .Attr("N: int >= 1")
    .Attr("tensor_name: string")
    .Attr("reduce_op: int")
    .Attr("prescale_factor: string = '1'")
    .Attr("postscale_factor: string = '1'")
    .Attr("process_set_id: int = 0")
    .Attr("group: bool = false")
    .Input("tensors: N * T")
    .Input("channel: resource")
    .Output("reduced: N * T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(UnknownRows)
    .Doc("Reduces a list of tensors over all ranks and gives each rank its share of the rows.");

REGISTER_OP("TfringAllgather")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("N: int >= 1")
    .Attr("tensor_name: string")
    .Attr("process_set_id: int = 0")
    .Attr("group: bool = false")
    .Input("tensors: N * T")
    .Input("channel: resource")
    .Output("gathered: N * T")
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

REGISTER_OP("TfringAlltoall")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("Tsplits: {int32, int64}")
    .Attr("tensor_name: string")
    .Attr("equal_splits: bool = false")
    .Attr("process_set_id: int = 0")
    .Input("tensor: T")
    .Input("splits: Tsplits")
    .Input("channel: resource")
    .Output("received: T")
    .Output("received_splits: Tsplits")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      return UnknownRowsOf(c, 1);
    })
    .Doc("Sends rows to every rank and receives rows from every rank, in order of rank.");

REGISTER_OP("TfringBarrier")
    .Attr("tensor_name: string")
    .Attr("process_set_id: int = 0")
    .Input("channel: resource")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs)
    .Doc("Waits until all ranks have come here.");

REGISTER_OP("TfringJoin")
    .Attr("tensor_name: string")
    .Attr("process_set_id: int = 0")
    .Input("channel: resource")
    .Output("last_rank: int32")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Takes no part in collectives until all ranks have joined.");

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
