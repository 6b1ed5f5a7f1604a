#include "ops/xla/custom_call.h"

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/xla/attributes.h"

namespace xla::ffi {
// Declared in xla/ffi/ffi_api.h, which needs headers that TensorFlow's wheel lacks.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tfring {
namespace {

namespace ffi = ::xla::ffi;

// Reads everything except shapes and buffers. `size` is the number of ranks for which the result's
// shape was computed, or 0.
Status ReadRequest(const ffi::Dictionary& attributes, Request* request, int64_t* size) {
  std::string_view name;
  std::string_view call_site;
  int64_t kind = 0, dtype = 0, op = 0, process_set = 0, root = 0, layout_hash = 0, group = 0;
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kTensorName, &name));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kKind, &kind));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kDataType, &dtype));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kReduceOp, &op));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kPrescale, &request->prescale));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kPostscale, &request->postscale));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kProcessSet, &process_set));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kRoot, &root));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kLayoutHash, &layout_hash));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kGroup, &group));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kCallSite, &call_site));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kSize, size));
  request->name = std::string(name);
  request->call_site = std::string(call_site);
  request->kind = static_cast<CollectiveKind>(kind);
  request->dtype = static_cast<DataType>(dtype);
  request->op = static_cast<ReduceOp>(op);
  request->process_set = static_cast<ProcessSetId>(process_set);
  request->root = static_cast<Rank>(root);
  request->layout_hash = static_cast<uint64_t>(layout_hash);
  request->group = group != 0;
  return OkStatus();
}

// Adds the shapes and buffers of the tensors. The last operand and the last result are the chain.
Status ReadTensors(const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results,
                   Request* request, LocalCall* call) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    const ffi::ErrorOr<ffi::AnyBuffer> input = arguments.get<ffi::AnyBuffer>(i);
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> output = results.get<ffi::AnyBuffer>(i);
    if (!input.has_value() || !output.has_value()) {
      return Internal("tensor " + request->name + ": the custom call has no tensor " +
                      std::to_string(i));
    }
    request->shapes.emplace_back(input->dimensions().begin(), input->dimensions().end());
    const auto bytes = static_cast<int64_t>(input->size_bytes());
    if (Traits(request->kind).allocates_output()) {
      call->buffers.push_back({input->untyped_data(), nullptr, bytes, 0});
    } else {
      call->buffers.push_back({input->untyped_data(), (*output)->untyped_data(), bytes,
                               static_cast<int64_t>((*output)->size_bytes())});
    }
  }
  return OkStatus();
}

// Refuses the request if the number of ranks has changed since the function was compiled. The other
// ranks get the error too: their functions may have been compiled after the change.
Status RefuseIfResized(int64_t compiled_size, Request* request) {
  const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current();
  if (!runtime.ok()) return runtime.status();
  const Result<std::vector<Rank>> members = (*runtime)->Members(request->process_set);
  if (!members.ok()) return members.status();
  if (members->size() == static_cast<size_t>(compiled_size)) return OkStatus();
  request->refusal =
      "tensor " + request->name + " is in a function that was compiled (jit_compile=True) for " +
      std::to_string(compiled_size) + " ranks, and there are " + std::to_string(members->size()) +
      " now: make the tf.function anew after init()";
  return OkStatus();
}

// XLA has already allocated the outputs, for the shapes computed at compile time.
void UseGivenOutputs(const ffi::RemainingRets& results, const Request& request, LocalCall* call) {
  std::vector<std::pair<Shape, void*>> given;
  for (size_t i = 0; i < request.shapes.size(); ++i) {
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> output = results.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer::Dimensions sizes = (*output)->dimensions();
    given.emplace_back(Shape(sizes.begin(), sizes.end()), (*output)->untyped_data());
  }
  call->allocate = [given = std::move(given), what = Describe(request)](
                       int tensor, const Shape& shape) -> Result<void*> {
    const auto& [expected, memory] = given[static_cast<size_t>(tensor)];
    if (shape == expected) return memory;
    return FailedPrecondition(
        what + ": the rows of all ranks make " + ShapeString(shape) +
        ", but jit_compile=True fixed the output as " + ShapeString(expected) +
        ": a compiled allgather needs the same number of rows on every rank, and all ranks; pad "
        "the tensor, or use jit_compile=False");
  };
}

}  // namespace

// Both use the numbers of absl's codes.
ffi::Error ToFfi(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code()), status.message());
}

Status CheckCount(const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  if (arguments.size() >= 2 && arguments.size() == results.size()) return OkStatus();
  return Internal("the custom call of a collective has " + std::to_string(arguments.size()) +
                  " operands and " + std::to_string(results.size()) +
                  " results: it needs at least one tensor and the chain, and as many results");
}

Status ReadCall(const ffi::Dictionary& attributes, const ffi::RemainingArgs& arguments,
                const ffi::RemainingRets& results, Request* request, LocalCall* call) {
  int64_t size = 0;
  call->compiled = true;
  TFRING_RETURN_IF_ERROR(ReadRequest(attributes, request, &size));
  TFRING_RETURN_IF_ERROR(ReadTensors(arguments, results, request, call));
  if (Traits(request->kind).allocates_output()) UseGivenOutputs(results, *request, call);
  return size == 0 ? OkStatus() : RefuseIfResized(size, request);
}

bool RegisterHandler(const char* target, const char* platform, XLA_FFI_Handler* handler) {
  return ffi::Ffi::RegisterStaticHandler(ffi::GetXlaFfiApi(), target, platform, handler) == nullptr;
}

}  // namespace tfring
