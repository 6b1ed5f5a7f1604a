#ifndef TFRING_OPS_GPU_CUDA_DEVICE_H_
#define TFRING_OPS_GPU_CUDA_DEVICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/gpu/cuda/driver.h"
#include "ops/runtime/base/status.h"

namespace tfring {

class CudaDevice;

// An event of a device, without timing. Its destructor returns it to the device's pool, on any
// thread. It may be recorded repeatedly.
class CudaEvent {
 public:
  CudaEvent(std::shared_ptr<CudaDevice> device, CuEvent event);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  CuEvent get() const { return event_; }
  // Returns whether the event has happened, or the device is broken. False if the driver does not
  // say. Does not block.
  bool Happened() const;

 private:
  const std::shared_ptr<CudaDevice> device_;
  const CuEvent event_;
};

// One GPU as this process uses it: the framework's context, the GPU's properties, and our streams
// and events in that context. Streams live as long as this object. Thread-safe.
class CudaDevice : public std::enable_shared_from_this<CudaDevice> {
 public:
  // Returns the device of a context that stays valid as long as this object.
  static Result<std::shared_ptr<CudaDevice>> Of(std::shared_ptr<const CudaDriver> driver,
                                                CuContext context);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  const CudaFunctions& cu() const { return driver_->cu(); }
  CuContext context() const { return context_; }
  int ordinal() const { return ordinal_; }                  // in this process
  const std::string& uuid() const { return uuid_; }         // "GPU-" and 32 digits in five groups
  const std::string& bus_id() const { return bus_id_; }     // "0000:07:00.0"
  bool mig() const;                                         // an instance of a card
  const std::string& name() const { return name_; }         // "NVIDIA H100 80GB HBM3"
  int compute_capability() const { return capability_; }    // 90: sm_90
  int multiprocessors() const { return multiprocessors_; }  // SMs

  // Returns a new stream with the highest priority. It does not wait for the default stream.
  Result<CuStream> MakeStream();

  Result<std::shared_ptr<CudaEvent>> TakeEvent();
  // Returns an event that happens once all present work on `stream` is done.
  Result<std::shared_ptr<CudaEvent>> Record(CuStream stream);

  // Returns device memory; destroying the pointer returns it to a pool of this device. For rare
  // use: the pools are not bounded.
  Result<std::shared_ptr<void>> Scratch(int64_t bytes);

  // As CudaDriver::Check, with the device in the text. Remembers sticky errors.
  Status Check(CuResult result, const char* doing);
  // Returns the first sticky error, or ok.
  Status broken() const;

 private:
  friend class CudaEvent;
  CudaDevice(std::shared_ptr<const CudaDriver> driver, CuContext context);
  Status ReadFacts();
  void ReturnEvent(CuEvent event);
  void ReturnScratch(size_t bytes, CuDevicePtr memory);

  const std::shared_ptr<const CudaDriver> driver_;
  const CuContext context_;
  int ordinal_ = 0;
  std::string uuid_;
  std::string bus_id_;
  std::string name_;
  int capability_ = 0;
  int multiprocessors_ = 0;

  mutable std::mutex mutex_;  // guards the four below
  Status broken_;
  std::vector<CuStream> streams_;
  std::vector<CuEvent> events_;  // free events
  std::multimap<size_t, CuDevicePtr> scratch_;
};

// Makes the device's context current on this thread, and later restores the previous one.
class ScopedContext {
 public:
  explicit ScopedContext(CudaDevice* device);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  const Status& status() const { return status_; }

 private:
  CudaDevice* const device_;
  Status status_;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_CUDA_DEVICE_H_
