// How XLA compiles the collectives used in training (jit_compile=True): each op becomes one custom
// call, which runs a function of cpu_handlers.cc or device_handlers.cc. This is the only file that
// includes headers of the compiler.
//
// The chain. XLA runs custom calls one after another, calls wait for their collectives, and XLA
// chooses the order of independent calls. Two ranks that run two collectives in different orders
// would wait for each other forever. So the calls depend on each other: all collectives of a
// program share one resource, the chain, in the place of other ops' `channel`. Each custom call
// takes the value of the chain as its last operand and returns the new value as its last result.
// XLA then keeps the order in which TensorFlow gives it the ops, also through loops and conditions.
// Because all ops use one resource, TensorFlow's automatic control dependencies give them in the
// order in which Python traced them (see tfring/ops/channels.py).
//
// The chain begins and ends with a program. TensorFlow would lock a variable while a program runs,
// and two threads with a program each could wait for each other across ranks.
//
// On a GPU nothing reads or writes the chain: its result shares the memory of its operand.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernels/conversions.h"
#include "ops/kernels/topology_field.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/xla/attributes.h"
#include "ops/xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_context.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/compiler/tf2xla/xla_resource.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

#if __has_include("xla/hlo/builder/xla_builder.h")
#include "xla/hlo/builder/xla_builder.h"
#else  // before TensorFlow 2.19
#include "xla/client/xla_builder.h"
#endif

namespace tfring {
namespace {

namespace tf = tensorflow;

// Builds the text of an MLIR dictionary attribute, for one custom call.
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
  // Writes the bits of the number, which MLIR can read, so no digit is lost.
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

// Pairs of a result's place and the operand, as number and place, whose memory the result shares.
using Aliases = std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>;

// Results [first, end) of the tuple share the memory of the operands with the same numbers.
Aliases InPlace(int first, int end) {
  Aliases aliases(end - first);
  for (int i = first; i < end; ++i) {
    aliases[i - first].first.push_back(i);
    aliases[i - first].second.first = i;
  }
  return aliases;
}

bool OnGpu(const tf::OpKernelConstruction& construction) {
  return construction.device_type() == tf::DeviceType(tf::DEVICE_GPU_XLA_JIT);
}

struct CallTarget {
  const char* name;
  Aliases aliases;
  xla::CustomCallSchedule schedule = xla::CustomCallSchedule::SCHEDULE_NONE;
};

// Builds one custom call for the tensors and the chain, which is the last input of the op.
class ChainedCall {
 public:
  explicit ChainedCall(tf::XlaOpKernelContext* context)
      : context_(context), chain_(context->num_inputs() - 1) {}

  // Adds an operand, and a result with shape `result`.
  void Add(xla::XlaOp operand, const xla::Shape& shape, const xla::Shape& result) {
    operands_.push_back(operand);
    shapes_.push_back(shape);
    results_.push_back(result);
  }

  // Call this after all tensors are added.
  absl::Status Finish(const CallTarget& target, const AttributeText& attributes) {
    xla::XlaOp value;
    TF_RETURN_IF_ERROR(context_->ReadVariableInput(chain_, tf::DT_INT32, nullptr, &value));
    const xla::Shape shape = RowMajor(xla::ShapeUtil::MakeShape(xla::S32, {2}));
    Add(value, shape, shape);
    const xla::XlaOp call = xla::CustomCallWithLayout(
        context_->builder(), target.name, operands_, xla::ShapeUtil::MakeTupleShape(results_),
        shapes_, attributes.Finish(), /*has_side_effect=*/true, target.aliases, nullptr,
        target.schedule, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
    for (int i = 0; i < chain_; ++i) context_->SetOutput(i, xla::GetTupleElement(call, i));
    return context_->AssignVariable(chain_, tf::DT_INT32, xla::GetTupleElement(call, chain_));
  }

 private:
  tf::XlaOpKernelContext* const context_;
  const int chain_;
  std::vector<xla::XlaOp> operands_;
  std::vector<xla::Shape> shapes_, results_;
};

// Turns one collective op into a custom call. XLA makes an instance when it compiles the op and
// uses it on that thread only. The compiled program does not use it.
class CollectiveXlaKernel : public tf::XlaOpKernel {
 public:
  CollectiveXlaKernel(tf::OpKernelConstruction* construction, CollectiveKind kind, bool starts)
      : XlaOpKernel(construction), on_gpu_(OnGpu(*construction)), starts_(starts) {
    OP_REQUIRES_OK(construction, ReadAttributes(*construction, kind, &request_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    ChainedCall call(context);
    const int chain = context->num_inputs() - 1;
    int64_t size = 0;
    for (int i = 0; i < chain; ++i) {
      const absl::StatusOr<xla::Shape> shape = context->builder()->GetShape(context->Input(i));
      OP_REQUIRES_OK(context, shape.status());
      OP_REQUIRES(context, shape->is_static(), UnknownShape(*shape));
      const xla::Shape operand = RowMajor(*shape);
      xla::Shape result = operand;
      OP_REQUIRES_OK(context, ResultShape(&result, &size));
      call.Add(context->Input(i), operand, result);
    }
    OP_REQUIRES_OK(context, call.Finish(Target(chain), Attributes(size)));
  }

 private:
  // `chain` is the number of tensors.
  CallTarget Target(int chain) const {
    if (!on_gpu_) return {xla_names::kCollective, {}};
    if (!starts_) return {xla_names::kCollective, InPlace(chain, chain + 1)};
    return {xla_names::kStart, InPlace(0, chain + 1), xla::CustomCallSchedule::SCHEDULE_EARLIEST};
  }

  // Changes the shape of an operand to that of its result. An allgather's shape needs the number of
  // ranks, which is left in `size`, and all ranks must have the same number of rows.
  absl::Status ResultShape(xla::Shape* shape, int64_t* size) const {
    if (request_.kind != CollectiveKind::kAllgather) return absl::OkStatus();
    if (shape->dimensions().empty()) return absl::OkStatus();  // refused when it runs, on all ranks
    const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current();
    if (!runtime.ok()) return ToAbsl(runtime.status());
    const Result<std::vector<Rank>> members = (*runtime)->Members(request_.process_set);
    if (!members.ok()) return ToAbsl(members.status());
    *size = static_cast<int64_t>(members->size());
    shape->set_dimensions(0, shape->dimensions(0) * *size);
    return absl::OkStatus();
  }

  absl::Status UnknownShape(const xla::Shape& shape) const {
    return absl::UnimplementedError(Describe(request_) + " has the shape " + shape.ToString() +
                                    ", which is known only when the function runs; XLA cannot "
                                    "compile that: use jit_compile=False");
  }

  AttributeText Attributes(int64_t size) const {
    AttributeText text;
    text.Add(xla_names::kTensorName, request_.name);
    text.Add(xla_names::kKind, static_cast<int64_t>(request_.kind));
    text.Add(xla_names::kDataType, static_cast<int64_t>(request_.dtype));
    text.Add(xla_names::kReduceOp, static_cast<int64_t>(request_.op));
    text.Add(xla_names::kPrescale, request_.prescale);
    text.Add(xla_names::kPostscale, request_.postscale);
    text.Add(xla_names::kProcessSet, static_cast<int64_t>(request_.process_set));
    text.Add(xla_names::kRoot, static_cast<int64_t>(request_.root));
    text.Add(xla_names::kLayoutHash, static_cast<int64_t>(request_.layout_hash));
    text.Add(xla_names::kGroup, static_cast<int64_t>(request_.group));
    text.Add(xla_names::kCallSite, request_.call_site);
    text.Add(xla_names::kSize, size);
    return text;
  }

  Request request_;  // without shapes
  const bool on_gpu_;
  const bool starts_;  // another op waits for the collective
};

template <CollectiveKind kind, bool starts = false>
class XlaKernelOf : public CollectiveXlaKernel {
 public:
  explicit XlaKernelOf(tf::OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, kind, starts) {}
};

// The second op of a pair. On a CPU the first op has waited for the collective, and this op does
// nothing.
class DoneXlaKernel : public tf::XlaOpKernel {
 public:
  explicit DoneXlaKernel(tf::OpKernelConstruction* construction)
      : XlaOpKernel(construction), on_gpu_(OnGpu(*construction)) {
    OP_REQUIRES_OK(construction, construction->GetAttr("tensor_name", &tensor_name_));
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &process_set_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    const int chain = context->num_inputs() - 1;
    if (!on_gpu_) {
      for (int i = 0; i < chain; ++i) context->SetOutput(i, context->Input(i));
      return;
    }
    ChainedCall call(context);
    for (int i = 0; i < chain; ++i) {
      const absl::StatusOr<xla::Shape> shape = context->builder()->GetShape(context->Input(i));
      OP_REQUIRES_OK(context, shape.status());
      call.Add(context->Input(i), RowMajor(*shape), RowMajor(*shape));
    }
    AttributeText text;
    text.Add(xla_names::kTensorName, tensor_name_);
    text.Add(xla_names::kProcessSet, static_cast<int64_t>(process_set_));
    const CallTarget target = {xla_names::kDone, InPlace(0, chain + 1),
                               xla::CustomCallSchedule::SCHEDULE_LATEST};
    OP_REQUIRES_OK(context, call.Finish(target, text));
  }

 private:
  std::string tensor_name_;
  int process_set_ = kGlobalProcessSet;
  const bool on_gpu_;
};

// TfringChannel in place of the chain: its graph was traced without jit_compile=True.
class ChannelXlaKernel : public tf::XlaOpKernel {
 public:
  explicit ChannelXlaKernel(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("tensor_name", &tensor_name_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    context->CtxFailure(absl::FailedPreconditionError(
        "tensor '" + tensor_name_ +
        "' is in a function that was traced without jit_compile=True and is now called by one with "
        "it: give each its own tf.function, or use jit_compile=False"));
  }

 private:
  std::string tensor_name_;
};

// TfringChain: each nested function has one; TensorFlow makes one program of all these functions.
class ChainXlaKernel : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* context) override {
    tf::XlaContext* const program = context->xla_context();
    for (const std::unique_ptr<tf::XlaResource>& resource : program->resources()) {
      if (resource->name() == kName) {  // the body of a loop or condition has that of the program
        context->SetResourceOutput(0, resource.get());
        return;
      }
    }
    // XLA for GPUs computes a broadcast. It would copy a constant from the code's memory.
    const xla::XlaOp zeros = xla::Broadcast(xla::ConstantR0<int32_t>(context->builder(), 0), {2});
    auto chain = std::make_unique<tf::XlaResource>(
        tf::XlaResource::kVariable, /*arg_num=*/-1, kName, tf::DT_INT32, tf::TensorShape({2}),
        zeros, /*max_array_size=*/-1, /*tensor_array_gradients=*/std::set<std::string>(),
        /*tensor_array_multiple_writes_aggregate=*/false);
    context->SetResourceOutput(0, program->AddResource(std::move(chain)));
  }

 private:
  static constexpr char kName[] = "tfring_chain";
};

// Turns one topology op into a custom call, so that the program reads the number each time it runs.
// Lives for one compilation, as CollectiveXlaKernel does.
template <TopologyField field>
class TopologyXlaKernel : public tf::XlaOpKernel {
 public:
  explicit TopologyXlaKernel(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set_id", &process_set_));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    // kIncluded is also read for its error alone, if there is no such set: XLA would leave out a
    // call whose result nobody uses.
    constexpr bool is_check = field == TopologyField::kIncluded;
    AttributeText text;
    text.Add(xla_names::kField, static_cast<int64_t>(field));
    text.Add(xla_names::kProcessSet, static_cast<int64_t>(process_set_));
    context->SetOutput(
        0, xla::CustomCallWithLayout(context->builder(), xla_names::kTopology, {},
                                     RowMajor(xla::ShapeUtil::MakeShape(xla::S32, {})), {},
                                     text.Finish(), /*has_side_effect=*/is_check, {}, nullptr,
                                     xla::CustomCallSchedule::SCHEDULE_NONE,
                                     xla::CustomCallApiVersion::API_VERSION_TYPED_FFI));
  }

 private:
  int process_set_ = kGlobalProcessSet;
};

// A guard belongs in the function around a compiled one. Where tfring/ops/step_guard.py cannot know
// that a function will be compiled, the guard is inside, and it does nothing.
class StepGuardXlaKernel : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;
  void Compile(tf::XlaOpKernelContext*) override {}
};

// For CPUs and GPUs. REGISTER_XLA_OP alone is enough if this library is loaded before XLA's first
// compilation, which turns that registry into kernels once. The other registrations, preferred by
// their priority, serve a library that is loaded later.
#define TFRING_REGISTER_XLA_ON(name, device, ...)                               \
  REGISTER_XLA_OP(Name(name).Device(device).AllowResourceTypes(), __VA_ARGS__); \
  REGISTER_KERNEL_BUILDER(Name(name).Device(device).Priority(1), __VA_ARGS__)
#define TFRING_REGISTER_XLA(name, ...)                               \
  TFRING_REGISTER_XLA_ON(name, tf::DEVICE_CPU_XLA_JIT, __VA_ARGS__); \
  TFRING_REGISTER_XLA_ON(name, tf::DEVICE_GPU_XLA_JIT, __VA_ARGS__)

TFRING_REGISTER_XLA("TfringAllreduce", XlaKernelOf<CollectiveKind::kAllreduce>);
using AllreduceStart = XlaKernelOf<CollectiveKind::kAllreduce, true>;
TFRING_REGISTER_XLA("TfringAllreduceStart", AllreduceStart);
TFRING_REGISTER_XLA("TfringAllreduceDone", DoneXlaKernel);
TFRING_REGISTER_XLA("TfringBroadcast", XlaKernelOf<CollectiveKind::kBroadcast>);
TFRING_REGISTER_XLA("TfringAllgather", XlaKernelOf<CollectiveKind::kAllgather>);
TFRING_REGISTER_XLA("TfringChannel", ChannelXlaKernel);
TFRING_REGISTER_XLA("TfringChain", ChainXlaKernel);
TFRING_REGISTER_XLA("TfringStepGuard", StepGuardXlaKernel);
TFRING_REGISTER_XLA("TfringRank", TopologyXlaKernel<TopologyField::kRank>);
TFRING_REGISTER_XLA("TfringSize", TopologyXlaKernel<TopologyField::kSize>);
TFRING_REGISTER_XLA("TfringLocalRank", TopologyXlaKernel<TopologyField::kLocalRank>);
TFRING_REGISTER_XLA("TfringLocalSize", TopologyXlaKernel<TopologyField::kLocalSize>);
TFRING_REGISTER_XLA("TfringCrossRank", TopologyXlaKernel<TopologyField::kCrossRank>);
TFRING_REGISTER_XLA("TfringCrossSize", TopologyXlaKernel<TopologyField::kCrossSize>);
TFRING_REGISTER_XLA("TfringProcessSetIncluded", TopologyXlaKernel<TopologyField::kIncluded>);

}  // namespace
}  // namespace tfring
