// The ops as TensorFlow's graphs know them: inputs, attributes, shapes.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfring {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ScalarShape;
using tensorflow::shape_inference::ShapeHandle;

// Output i has the shape of input i.
absl::Status SameShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

// Output i has the shape of input i, except for the number of rows, which depends on the other
// ranks. A scalar has no rows: the kernel refuses it, so that all ranks get the error.
absl::Status UnknownRows(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) {
    ShapeHandle output = c->input(i);
    if (!c->RankKnown(output) || c->Rank(output) == 0) {
      output = c->UnknownShape();
    } else {
      TF_RETURN_IF_ERROR(c->ReplaceDim(output, 0, c->UnknownDim(), &output));
    }
    c->set_output(i, output);
  }
  return absl::OkStatus();
}

// The second output of alltoall is always a vector.
absl::Status AlltoallShapes(InferenceContext* c) {
  TF_RETURN_IF_ERROR(UnknownRows(c));
  c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

absl::Status ShapeFromAttribute(InferenceContext* c) {
  tensorflow::PartialTensorShape shape;
  TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
  ShapeHandle output;
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shape, &output));
  c->set_output(0, output);
  return absl::OkStatus();
}

absl::Status NoOutputs(InferenceContext*) { return absl::OkStatus(); }

#define TFRING_MOVABLE_TYPES                                                                 \
  "{bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, " \
  "double, complex64, complex128}"
#define TFRING_REDUCIBLE_TYPES "{half, bfloat16, float, double, int8, uint8, int32, int64}"

// The attributes of every collective op. Each op also takes a resource as its last input,
// `channel`.
//
// The ops are stateful because TensorFlow may fold, merge or prune stateless ops. They take a
// resource because TensorFlow runs stateful ops without one in program order: nothing would
// overlap, and ranks that trace their ops in different orders would deadlock. TfringChannel gives
// that resource; under XLA TfringChain does (see tfring/ops/channels.py). The call site is for
// messages; eager ops have none (see process/call_notes.h). `in_graph` says that a step fails with
// the op; the kernel cannot know, because TensorFlow runs an eager op as a graph. `early`: on a GPU
// the op is done when the device's stream waits for the results, not when they are there. The ops
// are marked as distributed communication because TensorFlow replaces the UnavailableError of other
// ops.
#define TFRING_COLLECTIVE_OP(name)     \
  REGISTER_OP(name)                    \
      .SetIsStateful()                 \
      .SetIsDistributedCommunication() \
      .Attr("tensor_name: string")     \
      .Attr("process_set_id: int = 0") \
      .Attr("call_site: string = ''")  \
      .Attr("in_graph: bool = false")  \
      .Attr("early: bool = false")

// An op on a list of tensors of one dtype.
#define TFRING_LIST_OP(name, types, output) \
  TFRING_COLLECTIVE_OP(name)                \
      .Attr("T: " types)                    \
      .Attr("N: int >= 1")                  \
      .Input("tensors: N * T")              \
      .Input("channel: resource")           \
      .Output(output ": N * T")

// The factors are text, because a float attribute would round them to 32 bits.
#define TFRING_REDUCTION_OP(name)                         \
  TFRING_LIST_OP(name, TFRING_REDUCIBLE_TYPES, "reduced") \
      .Attr("reduce_op: int")                             \
      .Attr("prescale_factor: string = '1'")              \
      .Attr("postscale_factor: string = '1'")

TFRING_REDUCTION_OP("TfringAllreduce")
    .Attr("layout_hash: int = 0")
    .Attr("group: bool = false")
    .SetShapeFn(SameShapes)
    .Doc("Reduces a list of tensors over all ranks as one collective.");

// For XLA, which runs the ops of a function in one order: other work can go between the two ops. On
// a CPU the first op does all the work.
TFRING_REDUCTION_OP("TfringAllreduceStart")
    .Attr("layout_hash: int = 0")
    .Attr("group: bool = false")
    .SetShapeFn(SameShapes)
    .Doc("Begins a TfringAllreduce. Only TfringAllreduceDone may use what it gives.");

TFRING_LIST_OP("TfringAllreduceDone", TFRING_REDUCIBLE_TYPES, "reduced")
    .SetShapeFn(SameShapes)
    .Doc("Gives the results of the TfringAllreduceStart of the same tensor_name.");

// Says which loss the gradient belongs to: tfring/ops/gradients.py explains the values. Graphs that
// were saved before the attribute existed have Horovod's.
#define TFRING_GRADIENT "gradient: {'sum', 'mean', 'horovod'} = 'horovod'"

TFRING_REDUCTION_OP("TfringReducescatter")
    .Attr("group: bool = false")
    .Attr(TFRING_GRADIENT)
    .SetShapeFn(UnknownRows)
    .Doc("Reduces a list of tensors over all ranks and gives each rank its share of the rows.");

TFRING_REDUCTION_OP("TfringReduce")
    .Attr("root_rank: int")
    .SetShapeFn(SameShapes)
    .Doc("Reduces a list of tensors over all ranks for the root; the others get zeros.");

TFRING_LIST_OP("TfringAllgather", TFRING_MOVABLE_TYPES, "gathered")
    .Attr("group: bool = false")
    .Attr(TFRING_GRADIENT)
    .SetShapeFn(UnknownRows)
    .Doc("Concatenates the tensors of all ranks along the first dimension, in order of rank.");

TFRING_LIST_OP("TfringBroadcast", TFRING_MOVABLE_TYPES, "values")
    .Attr("root_rank: int")
    .Attr(TFRING_GRADIENT)
    .SetShapeFn(SameShapes)
    .Doc("Gives every rank the tensors of the root rank.");

TFRING_COLLECTIVE_OP("TfringGather")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("root_rank: int")
    .Input("tensor: T")
    .Input("channel: resource")
    .Output("gathered: T")
    .SetShapeFn(UnknownRows)
    .Doc("Concatenates the tensors of all ranks for the root; the others get no rows.");

TFRING_COLLECTIVE_OP("TfringScatter")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("Tsplits: {int32, int64}")
    .Attr("root_rank: int")
    .Attr("equal_splits: bool = false")
    .Input("tensor: T")
    .Input("splits: Tsplits")
    .Input("channel: resource")
    .Output("received: T")
    .SetShapeFn(UnknownRows)
    .Doc("Gives each rank its part of the root's rows.");

TFRING_COLLECTIVE_OP("TfringAlltoall")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("Tsplits: {int32, int64}")
    .Attr("equal_splits: bool = false")
    .Attr(TFRING_GRADIENT)
    .Input("tensor: T")
    .Input("splits: Tsplits")
    .Input("channel: resource")
    .Output("received: T")
    .Output("received_splits: Tsplits")
    .SetShapeFn(AlltoallShapes)
    .Doc("Sends rows to every rank and receives rows from every rank, in order of rank.");

TFRING_COLLECTIVE_OP("TfringSend")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("source: int")
    .Attr("destination: int")
    .Input("tensor: T")
    .Input("channel: resource")
    .SetShapeFn(NoOutputs)
    .Doc("Sends a tensor to one rank.");

TFRING_COLLECTIVE_OP("TfringRecv")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("source: int")
    .Attr("destination: int")
    .Attr("shape: shape = {unknown_rank: true}")
    .Input("channel: resource")
    .Output("tensor: T")
    .SetShapeFn(ShapeFromAttribute)
    .Doc("Receives a tensor from one rank.");

TFRING_COLLECTIVE_OP("TfringBarrier")
    .Input("channel: resource")
    .SetShapeFn(NoOutputs)
    .Doc("Waits until all ranks have called it.");

TFRING_COLLECTIVE_OP("TfringJoin")
    .Input("channel: resource")
    .Output("last_rank: int32")
    .SetShapeFn(ScalarShape)
    .Doc("Takes no part in collectives until all ranks have joined.");

// Stateful, so that TensorFlow runs it although it has no outputs.
REGISTER_OP("TfringStepGuard")
    .SetIsStateful()
    .Attr("process_set_id: int = 0")
    .SetShapeFn(NoOutputs)
    .Doc("Tells the other ranks if this execution of the graph fails.");

// Each graph has a channel for its collectives, so a function with collectives captures nothing: it
// can be differentiated in loops and conditions, and saved. Stateless: no op has to be in order
// with it, and the vectorizer of loops (pfor) takes it for the same in all iterations.
REGISTER_OP("TfringChannel")
    .Attr("tensor_name: string")
    .Attr("process_set_id: int = 0")
    .Output("channel: resource")
    .SetShapeFn(ScalarShape)
    .Doc("What the collectives of one name in one graph share: TensorFlow keeps them in order.");

REGISTER_OP("TfringChain")
    .Output("chain: resource")
    .SetShapeFn(ScalarShape)
    .Doc("What all collectives of a function share that XLA compiles, as calls of such functions.");

REGISTER_OP("TfringScaled")
    .Input("tensor: T")
    .Input("factor: float")
    .Output("scaled: T")
    .Attr("T: {half, bfloat16, float, double, int8, uint8, int32, int64, complex64, complex128}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc("The tensor times the factor; the tensor itself if the factor is 1, but for rounding.");

// Stateful, so that TensorFlow never folds the present rank or size into a graph as a constant.
#define TFRING_TOPOLOGY_OP(name)       \
  REGISTER_OP(name)                    \
      .SetIsStateful()                 \
      .Attr("process_set_id: int = 0") \
      .Output("value: int32")          \
      .SetShapeFn(ScalarShape)         \
      .Doc("Read from the runtime each time it runs.")

TFRING_TOPOLOGY_OP("TfringRank");
TFRING_TOPOLOGY_OP("TfringSize");
TFRING_TOPOLOGY_OP("TfringLocalRank");
TFRING_TOPOLOGY_OP("TfringLocalSize");
TFRING_TOPOLOGY_OP("TfringCrossRank");
TFRING_TOPOLOGY_OP("TfringCrossSize");
TFRING_TOPOLOGY_OP("TfringProcessSetIncluded");

}  // namespace
}  // namespace tfring
