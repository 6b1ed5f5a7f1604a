// What a program that XLA compiled for the CPU calls: the way of a custom call through the runtime.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/xla/attributes.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// Declared in xla/ffi/ffi_api.h, which needs headers that TensorFlow's wheel lacks.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tfring {
namespace {

namespace ffi = ::xla::ffi;

// The codes of both are numbered like absl's.
ffi::Error ToFfi(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code()), status.message());
}

Result<DataType> ToRuntimeType(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::PRED:
      return DataType::kBool;
    case ffi::DataType::U8:
      return DataType::kUint8;
    case ffi::DataType::S8:
      return DataType::kInt8;
    case ffi::DataType::U16:
      return DataType::kUint16;
    case ffi::DataType::S16:
      return DataType::kInt16;
    case ffi::DataType::U32:
      return DataType::kUint32;
    case ffi::DataType::S32:
      return DataType::kInt32;
    case ffi::DataType::U64:
      return DataType::kUint64;
    case ffi::DataType::S64:
      return DataType::kInt64;
    case ffi::DataType::F16:
      return DataType::kFloat16;
    case ffi::DataType::BF16:
      return DataType::kBfloat16;
    case ffi::DataType::F32:
      return DataType::kFloat32;
    case ffi::DataType::F64:
      return DataType::kFloat64;
    case ffi::DataType::C64:
      return DataType::kComplex64;
    case ffi::DataType::C128:
      return DataType::kComplex128;
    default:
      return InvalidArgument("XLA element type " + std::to_string(static_cast<int>(type)) +
                             " is not supported");
  }
}

template <typename T>
Status ReadAttribute(const ffi::Dictionary& attributes, const char* name, T* value) {
  const ffi::ErrorOr<T> found = attributes.get<T>(name);
  if (!found.has_value()) return Internal(std::string("custom call without ") + name);
  *value = *found;
  return OkStatus();
}

// Whatever is in the attributes; `size` is what shapes were computed with.
Status ReadRequest(const ffi::Dictionary& attributes, Request* request, int64_t* size) {
  std::string_view name;
  int64_t kind = 0, op = 0, process_set = 0, root = 0, layout_hash = 0, group = 0;
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kTensorName, &name));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kKind, &kind));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kReduceOp, &op));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kPrescale, &request->prescale));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kPostscale, &request->postscale));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kProcessSet, &process_set));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kRoot, &root));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kLayoutHash, &layout_hash));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kGroup, &group));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kSize, size));
  request->name = std::string(name);
  request->kind = static_cast<CollectiveKind>(kind);
  request->op = static_cast<ReduceOp>(op);
  request->process_set = static_cast<ProcessSetId>(process_set);
  request->root = static_cast<Rank>(root);
  request->layout_hash = static_cast<uint64_t>(layout_hash);
  request->group = group != 0;
  return OkStatus();
}

// The tensors; the last operand and the last result are the chain's.
Status ReadTensors(const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results,
                   Request* request, LocalCall* entry) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    const ffi::ErrorOr<ffi::AnyBuffer> input = arguments.get<ffi::AnyBuffer>(i);
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> output = results.get<ffi::AnyBuffer>(i);
    if (!input.has_value() || !output.has_value()) {
      return Internal("tensor " + request->name + ": the custom call has no tensor " +
                      std::to_string(i));
    }
    const Result<DataType> dtype = ToRuntimeType(input->element_type());
    if (!dtype.ok()) return dtype.status();
    request->dtype = *dtype;
    request->shapes.emplace_back(input->dimensions().begin(), input->dimensions().end());
    const auto bytes = static_cast<int64_t>(input->size_bytes());
    if (AllocatesOutput(request->kind)) {
      entry->buffers.push_back({input->untyped_data(), nullptr, bytes, 0});
    } else {
      entry->buffers.push_back({input->untyped_data(), (*output)->untyped_data(), bytes,
                                static_cast<int64_t>((*output)->size_bytes())});
    }
  }
  return OkStatus();
}

// Ascending; of the global process set as well.
Result<std::vector<Rank>> MembersOf(ProcessSetId process_set) {
  return ProcessRuntime::Get().Members(process_set);
}

std::string OtherSize(const Request& request, int64_t compiled, size_t now) {
  return "tensor " + request.name + " is in a function that was compiled (jit_compile=True) for " +
         std::to_string(compiled) + " ranks, and there are " + std::to_string(now) +
         " now: make the tf.function anew after init()";
}

// XLA has made the outputs' memory already, for the shapes that it computed.
void UseGivenOutputs(const ffi::RemainingRets& results, const Request& request, LocalCall* entry) {
  std::vector<std::pair<Shape, void*>> given;
  for (size_t i = 0; i < request.shapes.size(); ++i) {
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> output = results.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer::Dimensions sizes = (*output)->dimensions();
    given.emplace_back(Shape(sizes.begin(), sizes.end()), (*output)->untyped_data());
  }
  entry->allocate = [given = std::move(given), name = request.name](
                        int tensor, const Shape& shape) -> Result<void*> {
    const auto& [expected, memory] = given[static_cast<size_t>(tensor)];
    if (shape == expected) return memory;
    return FailedPrecondition(
        "allgather of tensor '" + name + "': the ranks' rows make " + ShapeString(shape) +
        ", but jit_compile=True fixed the output as " + ShapeString(expected) +
        ": a compiled allgather needs the same number of rows on every rank, and all ranks; pad "
        "the tensor, or use jit_compile=False");
  };
}

// The only wait of a thread that is not the runtime's; `done` comes whatever happens.
Status RunAndWait(Request request, LocalCall entry) {
  auto ended = std::make_shared<std::promise<Status>>();
  std::future<Status> status = ended->get_future();
  entry.done = [ended](const Status& ending) { ended->set_value(ending); };
  ProcessRuntime::Get().Enqueue(std::move(request), std::move(entry));
  return status.get();
}

Status RunCollective(const ffi::Dictionary& attributes, const ffi::RemainingArgs& arguments,
                     const ffi::RemainingRets& results) {
  Request request;
  LocalCall entry;
  int64_t size = 0;
  TFRING_RETURN_IF_ERROR(ReadRequest(attributes, &request, &size));
  TFRING_RETURN_IF_ERROR(ReadTensors(arguments, results, &request, &entry));
  if (AllocatesOutput(request.kind)) {
    UseGivenOutputs(results, request, &entry);
  }
  if (size != 0) {
    const Result<std::vector<Rank>> members = MembersOf(request.process_set);
    if (!members.ok()) return members.status();
    // Said to the others as well, who may have compiled anew.
    if (members->size() != static_cast<size_t>(size)) {
      request.refusal = OtherSize(request, size, members->size());
    }
  }
  TFRING_RETURN_IF_ERROR(RunAndWait(std::move(request), std::move(entry)));
  const size_t last = arguments.size() - 1;
  std::memcpy((*results.get<ffi::AnyBuffer>(last))->untyped_data(),
              arguments.get<ffi::AnyBuffer>(last)->untyped_data(), sizeof(int32_t));
  return OkStatus();
}

ffi::Error Collective(ffi::Dictionary attributes, ffi::RemainingArgs arguments,
                      ffi::RemainingRets results) {
  if (arguments.size() < 2 || arguments.size() != results.size()) {
    return ToFfi(
        Internal("a collective's custom call needs tensors and the chain, and as many "
                 "results"));
  }
  return ToFfi(RunCollective(attributes, arguments, results));
}

// The position in the process set, or -1 if this rank is none of it.
int32_t PositionIn(const std::vector<Rank>& members, Rank rank) {
  const auto it = std::lower_bound(members.begin(), members.end(), rank);
  return it != members.end() && *it == rank ? static_cast<int32_t>(it - members.begin()) : -1;
}

int32_t ReadField(const Topology& topology, const std::vector<Rank>& members,
                  xla_names::Field field) {
  switch (field) {
    case xla_names::Field::kRank:
      return PositionIn(members, topology.rank);
    case xla_names::Field::kSize:
      return static_cast<int32_t>(members.size());
    case xla_names::Field::kLocalRank:
      return topology.local_rank;
    case xla_names::Field::kLocalSize:
      return topology.local_size;
    case xla_names::Field::kCrossRank:
      return topology.cross_rank;
    case xla_names::Field::kCrossSize:
      return topology.cross_size;
    case xla_names::Field::kIncluded:
      return PositionIn(members, topology.rank) >= 0 ? 1 : 0;
  }
  return 0;
}

// Read when the program runs, so that it holds no rank or size.
ffi::Error ReadTopology(int64_t field, int64_t process_set,
                        ffi::Result<ffi::BufferR0<ffi::S32>> value) {
  const Result<Topology> topology = ProcessRuntime::Get().topology();
  if (!topology.ok()) return ToFfi(topology.status());
  const Result<std::vector<Rank>> members = MembersOf(static_cast<ProcessSetId>(process_set));
  if (!members.ok()) return ToFfi(members.status());
  *value->typed_data() = ReadField(*topology, *members, static_cast<xla_names::Field>(field));
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(collective_handler, Collective,
                       ffi::Ffi::Bind().Attrs().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(topology_handler, ReadTopology,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>(xla_names::kField)
                           .Attr<int64_t>(xla_names::kProcessSet)
                           .Ret<ffi::BufferR0<ffi::S32>>());

bool Register(const char* target, XLA_FFI_Handler* handler) {
  return ffi::Ffi::RegisterStaticHandler(ffi::GetXlaFfiApi(), target, "Host", handler) == nullptr;
}

const bool registered = Register(xla_names::kCollective, collective_handler) &&
                        Register(xla_names::kTopology, topology_handler);

}  // namespace
}  // namespace tfring

// Whether XLA took the handlers; asked through ctypes after loading.
extern "C" TFRING_EXPORT int TfringXlaRegistered() { return tfring::registered ? 1 : 0; }
