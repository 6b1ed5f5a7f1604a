// The functions that a program compiled by XLA for an NVIDIA GPU calls. The program enqueues work
// on a stream from one thread and runs ahead of the device, so it can continue while a collective
// runs. A start hands the tensors to the runtime and returns. Its done blocks the host until the
// stream has been made to wait for the results, so an error of the negotiation becomes an error of
// the program. An op that is not built as a pair does both at once.
//
// Tensors stay in place: a start's results are its operands, and a done's results are the start's.
// xla_kernels.cc tells XLA so, and XLA then keeps the memory until the done.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "ops/kernels/topology_field.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/xla/attributes.h"
#include "ops/xla/custom_call.h"
#include "ops/xla/handlers.h"
#include "ops/xla/started_calls.h"
#include "xla/ffi/api/ffi.h"

namespace tfring {
namespace {

namespace ffi = ::xla::ffi;

// Blocks until the stream waits for the results. After an error XLA frees the program's memory.
Status Finish(void* stream, const StartedCall& call) {
  Status outcome = call.WaitForLaunch();
  if (outcome.ok()) return outcome;
  call.WaitForMemory();
  StartedCalls::Get().AbandonAll(stream);
  return outcome;
}

Status RunCollective(void* stream, const ffi::Dictionary& attributes,
                     const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  Request request;
  LocalCall call;
  TFRING_RETURN_IF_ERROR(CheckCount(arguments, results));
  TFRING_RETURN_IF_ERROR(ReadCall(attributes, arguments, results, &request, &call));
  StartedCalls::Get().AbandonEarlier(stream, request.process_set, request.name);
  const StartedCall started = StartedCall::Enqueue(stream, std::move(request), std::move(call));
  return Finish(stream, started);
}

Status StartCollective(void* stream, const ffi::Dictionary& attributes,
                       const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  Request request;
  LocalCall call;
  TFRING_RETURN_IF_ERROR(CheckCount(arguments, results));
  TFRING_RETURN_IF_ERROR(ReadCall(attributes, arguments, results, &request, &call));
  const ProcessSetId process_set = request.process_set;
  const std::string name = request.name;
  StartedCalls::Get().AbandonEarlier(stream, process_set, name);
  StartedCalls::Get().Add(stream, process_set, name,
                          StartedCall::Enqueue(stream, std::move(request), std::move(call)));
  return OkStatus();
}

// The collective writes to the addresses that its start got.
Status CheckPlaces(const std::string& name, const StartedCall& call,
                   const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  bool same = call.outputs().size() + 1 == arguments.size();
  for (size_t i = 0; same && i < call.outputs().size(); ++i) {
    same = arguments.get<ffi::AnyBuffer>(i)->untyped_data() == call.outputs()[i] &&
           (*results.get<ffi::AnyBuffer>(i))->untyped_data() == call.outputs()[i];
  }
  if (same) return OkStatus();
  return Internal("tensor " + name + ": XLA has moved it while it was reduced; use " +
                  "jit_compile=False, and please report this");
}

Status FinishCollective(void* stream, const ffi::Dictionary& attributes,
                        const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  std::string_view name;
  int64_t process_set = 0;
  TFRING_RETURN_IF_ERROR(CheckCount(arguments, results));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kTensorName, &name));
  TFRING_RETURN_IF_ERROR(ReadAttribute(attributes, xla_names::kProcessSet, &process_set));
  const std::unique_ptr<StartedCall> call =
      StartedCalls::Get().Take(stream, static_cast<ProcessSetId>(process_set), std::string(name));
  if (call == nullptr) {
    return Internal("tensor " + std::string(name) + ": its reduction has not been started");
  }
  TFRING_RETURN_IF_ERROR(Finish(stream, *call));
  const Status in_place = CheckPlaces(std::string(name), *call, arguments, results);
  if (!in_place.ok()) StartedCalls::Get().AbandonAll(stream);
  return in_place;
}

Status WriteField(void* stream, int64_t field, int64_t process_set, void* memory) {
  const Result<int32_t> number =
      ReadTopology(static_cast<TopologyField>(field), static_cast<ProcessSetId>(process_set));
  if (!number.ok()) return number.status();
  const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current();
  if (!runtime.ok()) return runtime.status();
  const Result<std::shared_ptr<DeviceStream>> wrapped = (*runtime)->WrapStream(stream);
  if (!wrapped.ok()) return wrapped.status();
  return (*wrapped)->Write(memory, *number);
}

template <Status (*run)(void*, const ffi::Dictionary&, const ffi::RemainingArgs&,
                        const ffi::RemainingRets&)>
ffi::Error Handle(void* stream, ffi::Dictionary attributes, ffi::RemainingArgs arguments,
                  ffi::RemainingRets results) {
  return ToFfi(run(stream, attributes, arguments, results));
}

ffi::Error ReadDeviceField(void* stream, int64_t field, int64_t process_set,
                           ffi::Result<ffi::BufferR0<ffi::S32>> value) {
  return ToFfi(WriteField(stream, field, process_set, value->untyped_data()));
}

auto OnStream() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Attrs().RemainingArgs().RemainingRets();
}

XLA_FFI_DEFINE_HANDLER(device_collective_handler, Handle<RunCollective>, OnStream());
XLA_FFI_DEFINE_HANDLER(device_start_handler, Handle<StartCollective>, OnStream());
XLA_FFI_DEFINE_HANDLER(device_done_handler, Handle<FinishCollective>, OnStream());
XLA_FFI_DEFINE_HANDLER(device_topology_handler, ReadDeviceField,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Attr<int64_t>(xla_names::kField)
                           .Attr<int64_t>(xla_names::kProcessSet)
                           .Ret<ffi::BufferR0<ffi::S32>>());

}  // namespace

bool RegisterDeviceHandlers() {
  return RegisterHandler(xla_names::kCollective, "CUDA", device_collective_handler) &&
         RegisterHandler(xla_names::kStart, "CUDA", device_start_handler) &&
         RegisterHandler(xla_names::kDone, "CUDA", device_done_handler) &&
         RegisterHandler(xla_names::kTopology, "CUDA", device_topology_handler);
}

}  // namespace tfring
