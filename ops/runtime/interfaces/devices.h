#ifndef TFRING_OPS_RUNTIME_INTERFACES_DEVICES_H_
#define TFRING_OPS_RUNTIME_INTERFACES_DEVICES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/cpu_order.h"
#include "ops/runtime/interfaces/device_stream.h"

namespace tfring {

// Runs collectives with tensors in device memory through CPU memory. Thread-safe. The destructor
// requires Abort, or that nothing is in flight, and that the CPU backend has ended all that it was
// given.
class DeviceStaging {
 public:
  // The order of the CPU backend. `run` and `give_up` use a place that Submit was given; `fail`
  // aborts everything, because other ranks wait for the data of a collective that failed here.
  struct CpuQueue {
    std::function<void(uint64_t place, Collective, std::function<void(Completion)> ended)> run;
    std::function<void(uint64_t place)> give_up;
    std::function<void(Status)> fail;
  };

  virtual ~DeviceStaging() = default;

  // Stages the collective and runs it at its place. Returns at once.
  virtual void Submit(uint64_t place, Collective collective) = 0;

  // What is in flight and what comes later ends with `why`; copies that are under way first have 5
  // s to end.
  virtual void Abort(const Status& why) = 0;

  // As in CollectiveBackend.
  virtual int64_t progress() const = 0;
  virtual int64_t wakeups() const = 0;
};

struct DeviceOptions {
  Rank self = 0;
  std::string host_name;  // of this rank, for messages; may be empty
  Config config;
};

// What one rank needs for tensors in device memory. Thread-safe. What it makes may outlive it.
class Devices {
 public:
  virtual ~Devices() = default;

  // As ProcessRuntime::WrapStream.
  virtual Result<std::shared_ptr<DeviceStream>> Wrap(void* stream) = 0;

  // For the path kDevice. `order` outlives the backend.
  virtual Result<std::unique_ptr<CollectiveBackend>> MakeBackend(CpuOrder* order,
                                                                 CompletionSink sink) = 0;

  // Internal if the system refuses it a thread.
  virtual Result<std::unique_ptr<DeviceStaging>> MakeStaging(DeviceStaging::CpuQueue cpu,
                                                             CompletionSink sink) = 0;
};

// The NCCL that a process would use.
struct FoundNccl {
  std::string path;
  int version = 0;  // 22707 is 2.27.7
};

// What libtfring_cuda.so offers, by its one function, tfring_device_functions.
struct DeviceFunctions {
  int layout;  // the runtime refuses another than kDeviceFunctionsLayout
  std::unique_ptr<Devices> (*make)(const DeviceOptions& options);
  std::string (*kernels)();  // those that it has: "sm_70, sm_75, PTX"
  Result<FoundNccl> (*find_nccl)(const std::string& file);
};

// Changes with everything that crosses the border between the two libraries: this file, the
// interfaces that it names, Config.
inline constexpr int kDeviceFunctionsLayout = 1;
inline constexpr char kDeviceFunctionsSymbol[] = "tfring_device_functions";
using GetDeviceFunctions = const DeviceFunctions* (*)();
extern "C" TFRING_EXPORT const DeviceFunctions* tfring_device_functions();

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_DEVICES_H_
