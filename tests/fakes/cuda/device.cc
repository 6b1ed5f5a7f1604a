#include "tests/fakes/cuda/device.h"

#include <algorithm>
#include <utility>

#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/cuda/settings.h"

namespace fake_cuda {
namespace {

constexpr uintptr_t kFirstContext = 0xC0DE0000;
constexpr uintptr_t kFirstStream = 0x57000010;
constexpr uintptr_t kFirstEvent = 0xE7000010;
constexpr uintptr_t kHandleStep = 16;

std::atomic<bool> initialized{false};
thread_local bool in_host_function = false;

}  // namespace

void Device::Break(Result error) {
  error_ = error;
  Log("GPU %d breaks with error %d", number_, error);
}

Handle Device::context() const {
  return reinterpret_cast<Handle>(kFirstContext + static_cast<uintptr_t>(number_) * kHandleStep);
}

std::shared_ptr<Stream> Device::NewStream(int priority, unsigned flags) {
  std::shared_ptr<Stream> stream = Stream::Start(this, priority, flags);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto gone = [](const std::weak_ptr<Stream>& one) { return one.expired(); };
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(), gone), streams_.end());
  streams_.push_back(stream);
  return stream;
}

std::shared_ptr<Stream> Device::default_stream() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (default_ == nullptr) {
    default_ = Stream::Start(this, 0, 0);
    streams_.push_back(default_);
  }
  return default_;
}

std::vector<std::shared_ptr<Stream>> Device::Streams() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<Stream>> streams;
  for (const std::weak_ptr<Stream>& one : streams_) {
    if (std::shared_ptr<Stream> stream = one.lock()) streams.push_back(std::move(stream));
  }
  return streams;
}

bool Device::IsIdle() const {
  const auto streams = Streams();
  return std::all_of(streams.begin(), streams.end(), [](const auto& one) { return one->IsIdle(); });
}

void Device::Synchronize() {
  Count(Counter::kBlockingCalls);
  std::vector<std::shared_ptr<Mark>> ends;
  for (const auto& stream : Streams()) ends.push_back(stream->MarkEnd());
  for (const auto& end : ends) end->Wait();
}

Device& GetDevice(int number) {
  static auto* devices = [] {
    auto* made = new std::vector<std::unique_ptr<Device>>;
    for (int i = 0; i < kMaxDevices; ++i) made->push_back(std::make_unique<Device>(i));
    return made;
  }();
  return *(*devices)[static_cast<size_t>(number)];
}

int Devices() {
  return static_cast<int>(std::clamp(Get(Setting::kDevices), 0L, static_cast<long>(kMaxDevices)));
}

Device* DeviceOfContext(Handle context) {
  for (int i = 0; i < Devices(); ++i) {
    if (GetDevice(i).context() == context) return &GetDevice(i);
  }
  return nullptr;
}

std::vector<Handle>& ContextStack() {
  thread_local std::vector<Handle> stack;
  return stack;
}

HostFunctionScope::HostFunctionScope() { in_host_function = true; }
HostFunctionScope::~HostFunctionScope() { in_host_function = false; }

void Initialize() { initialized = true; }

Result Gate() {
  if (in_host_function) return kNotPermitted;
  return initialized ? kSuccess : kNotInitialized;
}

Result Gate(Device** device) {
  const Result result = Gate();
  if (result != kSuccess) return result;
  if (ContextStack().empty()) return kInvalidContext;
  *device = DeviceOfContext(ContextStack().back());
  return *device == nullptr ? kInvalidContext : (*device)->error();
}

Result GateOf(const Device& device) {
  const Result result = Gate();
  return result != kSuccess ? result : device.error();
}

template <typename Object>
Handle Handles<Object>::Add(std::shared_ptr<Object> object) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto handle = reinterpret_cast<Handle>(next_);
  next_ += kHandleStep;
  objects_[handle] = std::move(object);
  return handle;
}

template <typename Object>
std::shared_ptr<Object> Handles<Object>::Find(Handle handle, const char* call) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = objects_.find(handle);
  if (found != objects_.end()) return found->second;
  Die("%s of %s %p, which has been destroyed or was never made", call, what_, handle);
}

template <typename Object>
std::shared_ptr<Object> Handles<Object>::Remove(Handle handle, const char* call) {
  std::shared_ptr<Object> object = Find(handle, call);
  const std::lock_guard<std::mutex> lock(mutex_);
  objects_.erase(handle);
  return object;
}

template class Handles<Stream>;
template class Handles<Event>;

Handles<Stream>& Streams() {
  static auto* streams = new Handles<Stream>("stream", kFirstStream);
  return *streams;
}

Handles<Event>& Events() {
  static auto* events = new Handles<Event>("event", kFirstEvent);
  return *events;
}

Result FindStream(Handle handle, const char* call, std::shared_ptr<Stream>* stream) {
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    Device* device = nullptr;
    const Result result = Gate(&device);
    if (result == kSuccess) *stream = device->default_stream();
    return result;
  }
  const Result result = Gate();
  if (result != kSuccess) return result;
  *stream = Streams().Find(handle, call);
  return (*stream)->device()->error();
}

}  // namespace fake_cuda

FAKE_CUDA_API void FakeCudaReset(void) {
  for (int i = 0; i < fake_cuda::kMaxDevices; ++i) {
    fake_cuda::Device& device = fake_cuda::GetDevice(i);
    device.Break(fake_cuda::kIllegalAddress);  // drops what is queued
    device.Synchronize();
    device.Repair();
  }
  fake_cuda::ResetSettings();
}
