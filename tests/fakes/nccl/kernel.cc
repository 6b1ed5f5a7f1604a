#include "tests/fakes/nccl/kernel.h"

#include <map>
#include <mutex>
#include <utility>

#include "tests/fakes/nccl/kernel_run.h"
#include "tests/fakes/nccl/settings.h"

namespace fake_nccl {
namespace {

struct Kernel {
  std::shared_ptr<Communicator> communicator;
  std::vector<Call> calls;
};

struct KernelQueue {
  std::mutex mutex;  // guards all below
  std::map<void*, std::shared_ptr<Kernel>> queued;
  std::map<Uuid, long> slots_in_use;  // by device
};

// Never freed: threads of the library may outlive main.
KernelQueue& TheQueue() {
  static KernelQueue* state = new KernelQueue;
  return *state;
}

std::shared_ptr<Kernel> Take(void* kernel) {
  KernelQueue& state = TheQueue();
  const std::lock_guard<std::mutex> lock(state.mutex);
  std::shared_ptr<Kernel> taken = state.queued[kernel];
  state.queued.erase(kernel);
  return taken;
}

// One of the device's places for kernels. Waiting for it ends with the communicator's abort.
class DeviceSlot {
 public:
  explicit DeviceSlot(Communicator* communicator) : uuid_(communicator->device().uuid) {
    Pause pause;
    while (!(held_ = TryTake()) && communicator->GoOn()) pause();
  }
  ~DeviceSlot() {
    if (!held_) return;
    KernelQueue& state = TheQueue();
    const std::lock_guard<std::mutex> lock(state.mutex);
    --state.slots_in_use[uuid_];
  }
  DeviceSlot(const DeviceSlot&) = delete;
  DeviceSlot& operator=(const DeviceSlot&) = delete;
  bool held() const { return held_; }

 private:
  bool TryTake() const {
    const long slots = Setting("kernel_slots");
    KernelQueue& state = TheQueue();
    const std::lock_guard<std::mutex> lock(state.mutex);
    long& used = state.slots_in_use[uuid_];
    if (slots > 0 && used >= slots) return false;
    ++used;
    return true;
  }

  const Uuid uuid_;
  bool held_ = false;
};

void Run(Communicator* communicator, const std::vector<Call>& calls, std::mutex* running_mutex) {
  const DeviceSlot slot(communicator);
  if (!slot.held()) return;
  const std::lock_guard<std::mutex> lock(*running_mutex);
  Count("kernels");
  if (Strikes("error_at_kernel", communicator->rank())) {
    communicator->SetError(static_cast<ncclResult_t>(Setting("error_code")), "injected error");
    return communicator->Spin();
  }
  if (Strikes("hang_kernel", communicator->rank())) return communicator->Spin();
  RunCalls(communicator, calls);
}

}  // namespace

void* MakeKernel(std::shared_ptr<Communicator> communicator, std::vector<Call> calls) {
  auto made = std::make_shared<Kernel>(Kernel{std::move(communicator), std::move(calls)});
  KernelQueue& state = TheQueue();
  const std::lock_guard<std::mutex> lock(state.mutex);
  void* key = made.get();
  state.queued[key] = std::move(made);
  return key;
}

void DropKernel(void* kernel) { Take(kernel); }

void RunKernel(void* argument) {
  const std::shared_ptr<Kernel> kernel = Take(argument);
  Communicator* communicator = kernel->communicator.get();
  ++communicator->running_;
  if (!communicator->aborted_) Run(communicator, kernel->calls, &communicator->running_mutex_);
  --communicator->running_;
  --communicator->queued_;
}

}  // namespace fake_nccl
