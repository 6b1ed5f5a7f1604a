#ifndef TFRING_OPS_KERNELS_SHAPE_FUNCTIONS_H_
#define TFRING_OPS_KERNELS_SHAPE_FUNCTIONS_H_

#include "tensorflow/core/framework/shape_inference.h"

#define TFRING_MOVABLE_TYPES                                                                 \
  "{bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, " \
  "double, complex64, complex128}"
#define TFRING_REDUCIBLE_TYPES "{half, bfloat16, float, double, int8, uint8, int32, int64}"

namespace tfring {

// Output i has the shape of input i.
inline absl::Status SameShapes(tensorflow::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

// Output i is input i with another number of rows: how many ranks there are and how many rows they
// have is a matter of run time. A scalar, which has no rows, is refused when the op runs, so that
// all ranks hear about it.
inline absl::Status UnknownRowsOf(tensorflow::shape_inference::InferenceContext* c, int count) {
  for (int i = 0; i < count; ++i) {
    tensorflow::shape_inference::ShapeHandle output = c->input(i);
    if (!c->RankKnown(output) || c->Rank(output) == 0) {
      output = c->UnknownShape();
    } else {
      TF_RETURN_IF_ERROR(c->ReplaceDim(output, 0, c->UnknownDim(), &output));
    }
    c->set_output(i, output);
  }
  return absl::OkStatus();
}

inline absl::Status UnknownRows(tensorflow::shape_inference::InferenceContext* c) {
  return UnknownRowsOf(c, c->num_outputs());
}

inline absl::Status NoOutputs(tensorflow::shape_inference::InferenceContext*) {
  return absl::OkStatus();
}

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_SHAPE_FUNCTIONS_H_
