#include "ops/gpu/cuda/device.h"

#include <cstdio>
#include <utility>

namespace tfring {
namespace {

constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr unsigned kWithoutTiming = 2;  // CU_EVENT_DISABLE_TIMING
constexpr int kMultiprocessorCount = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

std::string UuidText(const CuUuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", uuid.bytes[i]);
    text += digits;
  }
  return text;
}

}  // namespace

CudaEvent::CudaEvent(std::shared_ptr<CudaDevice> device, CuEvent event)
    : device_(std::move(device)), event_(event) {}

CudaEvent::~CudaEvent() { device_->ReturnEvent(event_); }

bool CudaEvent::Happened() const {
  const ScopedContext current(device_.get());
  if (current.status().ok()) {
    const CuResult result = device_->cu().EventQuery(event_);
    if (result == kCudaSuccess) return true;
    if (result != kCudaNotReady) (void)device_->Check(result, "work on the GPU");
  }
  return !device_->broken().ok();
}

Result<std::shared_ptr<CudaDevice>> CudaDevice::Of(std::shared_ptr<const CudaDriver> driver,
                                                   CuContext context) {
  std::shared_ptr<CudaDevice> device(new CudaDevice(std::move(driver), context));
  TFRING_RETURN_IF_ERROR(device->ReadFacts());
  return device;
}

CudaDevice::CudaDevice(std::shared_ptr<const CudaDriver> driver, CuContext context)
    : driver_(std::move(driver)), context_(context) {}

// A broken context frees nothing; its owner ends it with the process.
CudaDevice::~CudaDevice() {
  if (!broken_.ok()) return;
  const ScopedContext current(this);
  if (!current.status().ok()) return;
  for (CuStream stream : streams_) cu().StreamDestroy(stream);
  for (CuEvent event : events_) cu().EventDestroy(event);
  for (const auto& [bytes, memory] : scratch_) cu().MemFree(memory);
}

Status CudaDevice::ReadFacts() {
  const ScopedContext current(this);
  TFRING_RETURN_IF_ERROR(current.status());
  constexpr const char* doing = "asking the GPU what it is";
  CuDevice device = 0;
  CuUuid uuid = {};
  char bus_id[32] = {};
  char name[256] = {};
  int major = 0;
  int minor = 0;
  TFRING_RETURN_IF_ERROR(Check(cu().CtxGetDevice(&device), doing));
  TFRING_RETURN_IF_ERROR(Check(cu().DeviceGetUuid(&uuid, device), doing));
  TFRING_RETURN_IF_ERROR(Check(cu().DeviceGetPCIBusId(bus_id, sizeof(bus_id) - 1, device), doing));
  TFRING_RETURN_IF_ERROR(Check(cu().DeviceGetName(name, sizeof(name) - 1, device), doing));
  TFRING_RETURN_IF_ERROR(Check(cu().DeviceGetAttribute(&major, kCapabilityMajor, device), doing));
  TFRING_RETURN_IF_ERROR(Check(cu().DeviceGetAttribute(&minor, kCapabilityMinor, device), doing));
  TFRING_RETURN_IF_ERROR(
      Check(cu().DeviceGetAttribute(&multiprocessors_, kMultiprocessorCount, device), doing));
  ordinal_ = device;
  uuid_ = UuidText(uuid);
  bus_id_ = bus_id;
  name_ = name;
  capability_ = 10 * major + minor;
  return OkStatus();
}

// The driver has no attribute for MIG; the name shows it: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
bool CudaDevice::mig() const { return name_.find(" MIG ") != std::string::npos; }

Result<CuStream> CudaDevice::MakeStream() {
  const ScopedContext current(this);
  TFRING_RETURN_IF_ERROR(current.status());
  constexpr const char* doing = "making a stream";
  int least = 0;
  int greatest = 0;
  TFRING_RETURN_IF_ERROR(Check(cu().CtxGetStreamPriorityRange(&least, &greatest), doing));
  CuStream stream = nullptr;
  TFRING_RETURN_IF_ERROR(
      Check(cu().StreamCreateWithPriority(&stream, kNonBlocking, greatest), doing));
  std::lock_guard<std::mutex> lock(mutex_);
  streams_.push_back(stream);
  return stream;
}

Result<std::shared_ptr<CudaEvent>> CudaDevice::TakeEvent() {
  CuEvent event = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
    }
  }
  if (event == nullptr) {
    const ScopedContext current(this);
    TFRING_RETURN_IF_ERROR(current.status());
    TFRING_RETURN_IF_ERROR(Check(cu().EventCreate(&event, kWithoutTiming), "making an event"));
  }
  return std::make_shared<CudaEvent>(shared_from_this(), event);
}

Result<std::shared_ptr<CudaEvent>> CudaDevice::Record(CuStream stream) {
  Result<std::shared_ptr<CudaEvent>> event = TakeEvent();
  if (!event.ok()) return event;
  const ScopedContext current(this);
  TFRING_RETURN_IF_ERROR(current.status());
  TFRING_RETURN_IF_ERROR(Check(cu().EventRecord((*event)->get(), stream), "recording an event"));
  return event;
}

void CudaDevice::ReturnEvent(CuEvent event) {
  std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back(event);
}

Result<std::shared_ptr<void>> CudaDevice::Scratch(int64_t bytes) {
  size_t size = 256;
  while (size < static_cast<size_t>(bytes)) size *= 2;
  CuDevicePtr memory = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = scratch_.find(size);
    if (it != scratch_.end()) {
      memory = it->second;
      scratch_.erase(it);
    }
  }
  if (memory == 0) {
    const ScopedContext current(this);
    TFRING_RETURN_IF_ERROR(current.status());
    TFRING_RETURN_IF_ERROR(
        Check(cu().MemAlloc(&memory, size),
              ("allocating " + std::to_string(bytes) + " bytes of scratch memory").c_str()));
  }
  return std::shared_ptr<void>(
      reinterpret_cast<void*>(memory),  // NOLINT(performance-no-int-to-ptr): the driver's type
      [self = shared_from_this(), size, memory](void*) { self->ReturnScratch(size, memory); });
}

void CudaDevice::ReturnScratch(size_t bytes, CuDevicePtr memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  scratch_.emplace(bytes, memory);
}

Status CudaDevice::Check(CuResult result, const char* doing) {
  if (result == kCudaSuccess) return OkStatus();
  const std::string where = name_.empty() ? "" : " (" + name_ + ", " + uuid_ + ")";
  const Status status = driver_->Check(result, doing, where);
  if (!CudaDriver::Sticky(result)) return status;
  std::lock_guard<std::mutex> lock(mutex_);
  if (broken_.ok()) broken_ = status;
  return status;
}

Status CudaDevice::broken() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return broken_;
}

ScopedContext::ScopedContext(CudaDevice* device) : device_(device) {
  status_ = device->Check(device->cu().CtxPushCurrent(device->context()), "entering its context");
}

ScopedContext::~ScopedContext() {
  CuContext popped = nullptr;
  if (status_.ok()) device_->cu().CtxPopCurrent(&popped);
}

}  // namespace tfring
