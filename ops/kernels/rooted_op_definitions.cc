// The ops in which one rank or two are special; op_definitions.cc says what all ops share.

#include "ops/kernels/shape_functions.h"
#include "tensorflow/core/framework/op.h"

namespace tfring {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfringReduce")
    .Attr("T: " TFRING_REDUCIBLE_TYPES)
    .Attr("N: int >= 1")
    .Attr("tensor_name: string")
    .Attr("root_rank: int")
    .Attr("reduce_op: int")
    .Attr("prescale_factor: string = '1'")
    .Attr("postscale_factor: string = '1'")
    .Attr("process_set_id: int = 0")
    .Input("tensors: N * T")
    .Input("channel: resource")
    .Output("reduced: N * T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc("Reduces a list of tensors over all ranks for the root; the others get zeros.");

REGISTER_OP("TfringGather")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("tensor_name: string")
    .Attr("root_rank: int")
    .Attr("process_set_id: int = 0")
    .Input("tensor: T")
    .Input("channel: resource")
    .Output("gathered: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(UnknownRows)
    .Doc("Concatenates the tensors of all ranks for the root; the others get no rows.");

REGISTER_OP("TfringScatter")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("Tsplits: {int32, int64}")
    .Attr("tensor_name: string")
    .Attr("root_rank: int")
    .Attr("equal_splits: bool = false")
    .Attr("process_set_id: int = 0")
    .Input("tensor: T")
    .Input("splits: Tsplits")
    .Input("channel: resource")
    .Output("received: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(UnknownRows)
    .Doc("Gives each rank its part of the root's rows.");

REGISTER_OP("TfringSend")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("tensor_name: string")
    .Attr("source: int")
    .Attr("destination: int")
    .Attr("process_set_id: int = 0")
    .Input("tensor: T")
    .Input("channel: resource")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs)
    .Doc("Sends a tensor to one rank.");

REGISTER_OP("TfringRecv")
    .Attr("T: " TFRING_MOVABLE_TYPES)
    .Attr("tensor_name: string")
    .Attr("source: int")
    .Attr("destination: int")
    .Attr("shape: shape = {unknown_rank: true}")
    .Attr("process_set_id: int = 0")
    .Input("channel: resource")
    .Output("tensor: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      tensorflow::PartialTensorShape shape;
      TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
      ShapeHandle output;
      TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shape, &output));
      c->set_output(0, output);
      return absl::OkStatus();
    })
    .Doc("Receives a tensor from one rank.");

}  // namespace
}  // namespace tfring
