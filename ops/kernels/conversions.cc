#include "ops/kernels/conversions.h"

#include <charconv>
#include <string>

namespace tfring {
namespace {

namespace tf = tensorflow;

constexpr bool SameNumber(StatusCode ours, absl::StatusCode absls) {
  return static_cast<int>(ours) == static_cast<int>(absls);
}
static_assert(SameNumber(StatusCode::kCancelled, absl::StatusCode::kCancelled));
static_assert(SameNumber(StatusCode::kInvalidArgument, absl::StatusCode::kInvalidArgument));
static_assert(SameNumber(StatusCode::kDeadlineExceeded, absl::StatusCode::kDeadlineExceeded));
static_assert(SameNumber(StatusCode::kResourceExhausted, absl::StatusCode::kResourceExhausted));
static_assert(SameNumber(StatusCode::kFailedPrecondition, absl::StatusCode::kFailedPrecondition));
static_assert(SameNumber(StatusCode::kAborted, absl::StatusCode::kAborted));
static_assert(SameNumber(StatusCode::kUnimplemented, absl::StatusCode::kUnimplemented));
static_assert(SameNumber(StatusCode::kInternal, absl::StatusCode::kInternal));
static_assert(SameNumber(StatusCode::kUnavailable, absl::StatusCode::kUnavailable));

absl::Status ToRuntimeType(tf::DataType type, DataType* out) {
  static constexpr struct {
    tf::DataType tensorflow;
    DataType runtime;
  } kTypes[] = {
      {tf::DT_BOOL, DataType::kBool},
      {tf::DT_UINT8, DataType::kUint8},
      {tf::DT_INT8, DataType::kInt8},
      {tf::DT_UINT16, DataType::kUint16},
      {tf::DT_INT16, DataType::kInt16},
      {tf::DT_UINT32, DataType::kUint32},
      {tf::DT_INT32, DataType::kInt32},
      {tf::DT_UINT64, DataType::kUint64},
      {tf::DT_INT64, DataType::kInt64},
      {tf::DT_HALF, DataType::kFloat16},
      {tf::DT_BFLOAT16, DataType::kBfloat16},
      {tf::DT_FLOAT, DataType::kFloat32},
      {tf::DT_DOUBLE, DataType::kFloat64},
      {tf::DT_COMPLEX64, DataType::kComplex64},
      {tf::DT_COMPLEX128, DataType::kComplex128},
  };
  for (const auto& pair : kTypes) {
    if (pair.tensorflow != type) continue;
    *out = pair.runtime;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("dtype " + tf::DataTypeString(type) + " is not supported");
}

// Leaves `value` unchanged if the op has no such attribute.
template <typename T>
absl::Status ReadIfPresent(const tf::OpKernelConstruction& construction, const char* attribute,
                           T* value) {
  if (!construction.HasAttr(attribute)) return absl::OkStatus();
  return construction.GetAttr(attribute, value);
}

absl::Status ReadFactor(const tf::OpKernelConstruction& construction, const char* attribute,
                        const std::string& tensor, double* factor) {
  std::string text;
  TF_RETURN_IF_ERROR(construction.GetAttr(attribute, &text));
  const char* end = text.data() + text.size();
  const std::from_chars_result parsed = std::from_chars(text.data(), end, *factor);
  if (parsed.ec == std::errc() && parsed.ptr == end) return absl::OkStatus();
  return absl::InvalidArgumentError("tensor " + tensor + ": " + attribute + " is '" + text +
                                    "', which is not a number");
}

absl::Status ReadReduction(const tf::OpKernelConstruction& construction, Request* request) {
  int reduce_op = 0;
  TF_RETURN_IF_ERROR(construction.GetAttr("reduce_op", &reduce_op));
  if (reduce_op < 0 || reduce_op >= kNumReduceOps) {
    return absl::InvalidArgumentError("tensor " + request->name + ": reduce_op must be 0 to " +
                                      std::to_string(kNumReduceOps - 1) + ", not " +
                                      std::to_string(reduce_op));
  }
  request->op = static_cast<ReduceOp>(reduce_op);
  TF_RETURN_IF_ERROR(
      ReadFactor(construction, "prescale_factor", request->name, &request->prescale));
  return ReadFactor(construction, "postscale_factor", request->name, &request->postscale);
}

}  // namespace

absl::Status ToAbsl(const Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

absl::Status ReadAttributes(const tf::OpKernelConstruction& construction, CollectiveKind kind,
                            Request* request) {
  request->kind = kind;
  TF_RETURN_IF_ERROR(construction.GetAttr("tensor_name", &request->name));
  TF_RETURN_IF_ERROR(construction.GetAttr("process_set_id", &request->process_set));
  TF_RETURN_IF_ERROR(ReadIfPresent(construction, "call_site", &request->call_site));
  TF_RETURN_IF_ERROR(ReadIfPresent(construction, "in_graph", &request->in_run));
  if (construction.HasAttr("T")) {
    tf::DataType type;
    TF_RETURN_IF_ERROR(construction.GetAttr("T", &type));
    TF_RETURN_IF_ERROR(ToRuntimeType(type, &request->dtype));
  }
  TF_RETURN_IF_ERROR(ReadIfPresent(construction, "root_rank", &request->root));
  TF_RETURN_IF_ERROR(ReadIfPresent(construction, "source", &request->root));
  TF_RETURN_IF_ERROR(ReadIfPresent(construction, "destination", &request->peer));
  TF_RETURN_IF_ERROR(ReadIfPresent(construction, "group", &request->group));
  int64_t layout_hash = 0;
  TF_RETURN_IF_ERROR(ReadIfPresent(construction, "layout_hash", &layout_hash));
  request->layout_hash = static_cast<uint64_t>(layout_hash);
  return Traits(kind).reduces ? ReadReduction(construction, request) : absl::OkStatus();
}

}  // namespace tfring
