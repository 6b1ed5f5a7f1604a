// The functions that a program compiled by XLA for the CPU calls: one runs a collective, the other
// reads a number of the topology. XLA calls them on its own thread, with the buffers of the custom
// call and the attributes that xla_kernels.cc wrote.

#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <utility>

#include "ops/kernels/topology_field.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/process/step_programs.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/xla/attributes.h"
#include "ops/xla/custom_call.h"
#include "ops/xla/handlers.h"
#include "xla/ffi/api/ffi.h"

namespace tfring {
namespace {

namespace ffi = ::xla::ffi;

// Blocks until the collective has ended. `done` is always called.
Status RunAndWait(Request request, LocalCall call) {
  auto ended = std::make_shared<std::promise<Status>>();
  std::future<Status> status = ended->get_future();
  const StepRun run = StepPrograms::Get().Surrounding();
  call.run = run.number;
  call.done = [ended](const Status& outcome) { ended->set_value(outcome); };
  EnqueueIn(run.generation, std::move(request), std::move(call));
  const Status outcome = status.get();
  if (!outcome.ok()) StepPrograms::Get().OnProgramFailed(run.number);
  return outcome;
}

Status RunCollective(const ffi::Dictionary& attributes, const ffi::RemainingArgs& arguments,
                     const ffi::RemainingRets& results) {
  Request request;
  LocalCall call;
  TFRING_RETURN_IF_ERROR(CheckCount(arguments, results));
  TFRING_RETURN_IF_ERROR(ReadCall(attributes, arguments, results, &request, &call));
  TFRING_RETURN_IF_ERROR(RunAndWait(std::move(request), std::move(call)));
  const size_t chain = arguments.size() - 1;
  const ffi::AnyBuffer before = *arguments.get<ffi::AnyBuffer>(chain);
  std::memcpy((*results.get<ffi::AnyBuffer>(chain))->untyped_data(), before.untyped_data(),
              before.size_bytes());
  return OkStatus();
}

ffi::Error Collective(ffi::Dictionary attributes, ffi::RemainingArgs arguments,
                      ffi::RemainingRets results) {
  return ToFfi(RunCollective(attributes, arguments, results));
}

// Runs each time the program runs, so the program holds no rank or size as a constant.
ffi::Error ReadCpuField(int64_t field, int64_t process_set,
                        ffi::Result<ffi::BufferR0<ffi::S32>> value) {
  const Result<int32_t> number =
      ReadTopology(static_cast<TopologyField>(field), static_cast<ProcessSetId>(process_set));
  if (number.ok()) *value->typed_data() = *number;
  return ToFfi(number.status());
}

XLA_FFI_DEFINE_HANDLER(cpu_collective_handler, Collective,
                       ffi::Ffi::Bind().Attrs().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(cpu_topology_handler, ReadCpuField,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>(xla_names::kField)
                           .Attr<int64_t>(xla_names::kProcessSet)
                           .Ret<ffi::BufferR0<ffi::S32>>());

}  // namespace

bool RegisterCpuHandlers() {
  return RegisterHandler(xla_names::kCollective, "Host", cpu_collective_handler) &&
         RegisterHandler(xla_names::kTopology, "Host", cpu_topology_handler);
}

}  // namespace tfring
