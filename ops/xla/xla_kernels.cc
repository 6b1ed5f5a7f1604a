// How XLA compiles the collectives used in training: one custom call per op. The only file that
// includes the compiler; it takes the better part of a minute.
//
// XLA on the CPU runs custom calls one after another, in an order that it chooses. Ranks that
// chose differently would wait for each other for ever. So every collective of a process takes the
// value of one variable, the chain, as an operand and assigns a result to it: XLA cannot but keep
// the order in which TensorFlow hands it the ops, through loops, conditions and functions, and
// automatic control dependencies make that the order in which Python traced them.

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernels/conversions.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/xla/attributes.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/compiler/tf2xla/xla_resource.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

// Builds the text of an MLIR dictionary attribute. Used by one thread.
class AttributeText {
 public:
  void Add(const char* name, const std::string& value) {
    std::string quoted = "\"";
    for (const char c : value) {
      char hex[4];
      std::snprintf(hex, sizeof(hex), "\\%02X", static_cast<unsigned char>(c));
      quoted += hex;
    }
    AddText(name, quoted + "\"");
  }
  void Add(const char* name, int64_t value) { AddText(name, std::to_string(value) + " : i64"); }
  // The bits, in MLIR's way of writing a float: no digit is lost.
  void Add(const char* name, double value) {
    char hex[32];
    uint64_t bits = 0;
    static_assert(sizeof(bits) == sizeof(value));
    std::memcpy(&bits, &value, sizeof(bits));
    std::snprintf(hex, sizeof(hex), "0x%016llX : f64", static_cast<unsigned long long>(bits));
    AddText(name, hex);
  }
  std::string Finish() const { return "{" + text_ + "}"; }

 private:
  void AddText(const char* name, const std::string& value) {
    text_ += (text_.empty() ? "" : ", ") + std::string(name) + " = " + value;
  }
  std::string text_;
};

xla::Shape RowMajor(xla::Shape shape) {
  xla::LayoutUtil::SetToDefaultLayout(&shape);
  return shape;
}

xla::XlaOp HostCall(xla::XlaBuilder* builder, const char* target,
                    const std::vector<xla::XlaOp>& operands, const xla::Shape& result,
                    const std::vector<xla::Shape>& shapes, const AttributeText& attributes,
                    bool has_side_effect) {
  return xla::CustomCallWithLayout(
      builder, target, operands, result, shapes, attributes.Finish(), has_side_effect, {}, nullptr,
      xla::CustomCallSchedule::SCHEDULE_NONE, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
}

// What the compiled collectives share: the attributes of the custom call and the chain. Constant
// after construction; lives for one compilation, on its thread.
class CollectiveXlaKernel : public tf::XlaOpKernel {
 public:
  CollectiveXlaKernel(tf::OpKernelConstruction* construction, CollectiveKind kind)
      : XlaOpKernel(construction) {
    request_.kind = kind;
    OP_REQUIRES_OK(construction, construction->GetAttr("tensor_name", &request_.name));
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &request_.process_set));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    const int chain = context->num_inputs() - 1;
    OP_REQUIRES_OK(context, CheckChain(context, chain));
    std::vector<xla::XlaOp> operands;
    std::vector<xla::Shape> shapes, results;
    int64_t size = 0;
    for (int i = 0; i < chain; ++i) {
      operands.push_back(context->Input(i));
      const absl::StatusOr<xla::Shape> shape = context->builder()->GetShape(operands.back());
      OP_REQUIRES_OK(context, shape.status());
      OP_REQUIRES(context, shape->is_static(), Unknown(*shape));
      shapes.push_back(RowMajor(*shape));
      results.push_back(shapes.back());
      OP_REQUIRES_OK(context, ResultShape(&results.back(), &size));
    }
    xla::XlaOp link;
    OP_REQUIRES_OK(context, context->ReadVariableInput(chain, tf::DT_INT32, nullptr, &link));
    operands.push_back(link);
    shapes.push_back(RowMajor(xla::ShapeUtil::MakeShape(xla::S32, {})));
    results.push_back(shapes.back());
    const xla::XlaOp call =
        HostCall(context->builder(), xla_names::kCollective, operands,
                 xla::ShapeUtil::MakeTupleShape(results), shapes, Attributes(size), true);
    for (int i = 0; i < chain; ++i) context->SetOutput(i, xla::GetTupleElement(call, i));
    OP_REQUIRES_OK(context,
                   context->AssignVariable(chain, tf::DT_INT32, xla::GetTupleElement(call, chain)));
  }

 protected:
  // From an operand's shape to that of its result; sets `size` where the number of ranks is in it.
  virtual absl::Status ResultShape(xla::Shape* shape, int64_t* size) const {
    return absl::OkStatus();
  }

  std::string What() const {
    return std::string(CollectiveKindName(request_.kind)) + " of tensor '" + request_.name + "'";
  }

  Request request_;

 private:
  absl::Status Unknown(const xla::Shape& shape) const {
    return absl::UnimplementedError(What() + " has the shape " + shape.ToString() +
                                    ", which is known only when the function runs; XLA cannot "
                                    "compile that: use jit_compile=False");
  }

  // A call that was traced without jit_compile has a channel of its own and no place in the chain.
  absl::Status CheckChain(tf::XlaOpKernelContext* context, int input) const {
    tf::XlaResource* resource = nullptr;
    TF_RETURN_IF_ERROR(context->GetResourceInput(input, &resource));
    if (resource->initialized() && resource->type() == tf::DT_INT32) return absl::OkStatus();
    return absl::FailedPreconditionError(
        What() +
        " is in a function that was traced without jit_compile=True and is now called by one with "
        "it: give each its own tf.function, or use jit_compile=False");
  }

  AttributeText Attributes(int64_t size) const {
    AttributeText text;
    text.Add(xla_names::kTensorName, request_.name);
    text.Add(xla_names::kKind, static_cast<int64_t>(request_.kind));
    text.Add(xla_names::kReduceOp, static_cast<int64_t>(request_.op));
    text.Add(xla_names::kPrescale, request_.prescale);
    text.Add(xla_names::kPostscale, request_.postscale);
    text.Add(xla_names::kProcessSet, static_cast<int64_t>(request_.process_set));
    text.Add(xla_names::kRoot, static_cast<int64_t>(request_.root));
    text.Add(xla_names::kLayoutHash, static_cast<int64_t>(request_.layout_hash));
    text.Add(xla_names::kGroup, static_cast<int64_t>(request_.group));
    text.Add(xla_names::kSize, size);
    return text;
  }
};

// TfringAllreduce. Thread rule and lifetime of CollectiveXlaKernel.
class AllreduceXlaKernel : public CollectiveXlaKernel {
 public:
  explicit AllreduceXlaKernel(tf::OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, CollectiveKind::kAllreduce) {
    int reduce_op = 0;
    int64_t layout_hash = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &reduce_op));
    OP_REQUIRES_OK(construction, construction->GetAttr("layout_hash", &layout_hash));
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &request_.group));
    OP_REQUIRES_OK(construction, GetFactor(construction, "prescale_factor", &request_.prescale));
    OP_REQUIRES_OK(construction, GetFactor(construction, "postscale_factor", &request_.postscale));
    request_.op = static_cast<ReduceOp>(reduce_op);
    request_.layout_hash = static_cast<uint64_t>(layout_hash);
  }

 private:
  absl::Status GetFactor(tf::OpKernelConstruction* construction, const char* attribute,
                         double* factor) const {
    std::string text;
    TF_RETURN_IF_ERROR(construction->GetAttr(attribute, &text));
    const char* end = text.data() + text.size();
    const std::from_chars_result parsed = std::from_chars(text.data(), end, *factor);
    if (parsed.ec == std::errc() && parsed.ptr == end) return absl::OkStatus();
    return absl::InvalidArgumentError("tensor " + request_.name + ": " + attribute + " is '" +
                                      text + "', not a number");
  }
};

// TfringBroadcast. Thread rule and lifetime of CollectiveXlaKernel.
class BroadcastXlaKernel : public CollectiveXlaKernel {
 public:
  explicit BroadcastXlaKernel(tf::OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, CollectiveKind::kBroadcast) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root_rank", &request_.root));
  }
};

// TfringAllgather, with the same number of rows on every rank. Thread rule and lifetime of
// CollectiveXlaKernel.
class AllgatherXlaKernel : public CollectiveXlaKernel {
 public:
  explicit AllgatherXlaKernel(tf::OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, CollectiveKind::kAllgather) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &request_.group));
  }

 protected:
  absl::Status ResultShape(xla::Shape* shape, int64_t* size) const override {
    if (shape->dimensions().empty()) return absl::OkStatus();  // refused when it runs, on all ranks
    const Result<std::vector<Rank>> members = ProcessRuntime::Get().Members(request_.process_set);
    if (!members.ok()) return ToAbsl(members.status());
    *size = static_cast<int64_t>(members->size());
    shape->set_dimensions(0, shape->dimensions(0) * *size);
    return absl::OkStatus();
  }
};

// One number of the topology, read when the program runs. Holds the process
// set's id; lives for one compilation.
template <xla_names::Field field>
class TopologyXlaKernel : public tf::XlaOpKernel {
 public:
  explicit TopologyXlaKernel(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &process_set_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    AttributeText text;
    text.Add(xla_names::kField, static_cast<int64_t>(field));
    text.Add(xla_names::kProcessSet, static_cast<int64_t>(process_set_));
    context->SetOutput(
        0, HostCall(context->builder(), xla_names::kTopology, {},
                    RowMajor(xla::ShapeUtil::MakeShape(xla::S32, {})), {}, text, false));
  }

 private:
  int process_set_ = kGlobalProcessSet;
};

// For the CPU alone: a GPU's handler would need buffers and streams that the runtime does not have.
// XLA makes kernels of its registry once, when it compiles for the first time. Registered as a
// kernel too, and one that is preferred, an op can be compiled even if we are loaded after that.
#define TFRING_REGISTER_XLA(name, ...)                                                          \
  REGISTER_XLA_OP(Name(name).Device(tf::DEVICE_CPU_XLA_JIT).AllowResourceTypes(), __VA_ARGS__); \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU_XLA_JIT).Priority(1), __VA_ARGS__)

TFRING_REGISTER_XLA("TfringAllreduce", AllreduceXlaKernel);
TFRING_REGISTER_XLA("TfringBroadcast", BroadcastXlaKernel);
TFRING_REGISTER_XLA("TfringAllgather", AllgatherXlaKernel);
TFRING_REGISTER_XLA("TfringRank", TopologyXlaKernel<xla_names::Field::kRank>);
TFRING_REGISTER_XLA("TfringSize", TopologyXlaKernel<xla_names::Field::kSize>);
TFRING_REGISTER_XLA("TfringLocalRank", TopologyXlaKernel<xla_names::Field::kLocalRank>);
TFRING_REGISTER_XLA("TfringLocalSize", TopologyXlaKernel<xla_names::Field::kLocalSize>);
TFRING_REGISTER_XLA("TfringCrossRank", TopologyXlaKernel<xla_names::Field::kCrossRank>);
TFRING_REGISTER_XLA("TfringCrossSize", TopologyXlaKernel<xla_names::Field::kCrossSize>);
TFRING_REGISTER_XLA("TfringProcessSetIncluded", TopologyXlaKernel<xla_names::Field::kIncluded>);

}  // namespace
}  // namespace tfring
