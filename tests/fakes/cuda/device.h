#ifndef TFRING_TESTS_FAKES_CUDA_DEVICE_H_
#define TFRING_TESTS_FAKES_CUDA_DEVICE_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/fakes/cuda/driver_types.h"
#include "tests/fakes/cuda/stream.h"

namespace fake_cuda {

// One GPU: its error, its streams, its one context. Never destroyed; thread-safe.
class Device {
 public:
  explicit Device(int number) : number_(number) {}

  int number() const { return number_; }
  // The error that it broke with; sticky. kSuccess if it works.
  Result error() const { return error_; }
  void Break(Result error);
  void Repair() { error_ = kSuccess; }

  // The handle of its primary context.
  Handle context() const;

  std::shared_ptr<Stream> NewStream(int priority, unsigned flags);
  // The stream of handles 0, 1 and 2; made at the first use.
  std::shared_ptr<Stream> default_stream();

  bool IsIdle() const;
  // Waits until all work that is on its streams now is done or dropped.
  void Synchronize();

 private:
  std::vector<std::shared_ptr<Stream>> Streams() const;

  const int number_;
  std::atomic<Result> error_{kSuccess};
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Stream>> streams_;  // guarded by mutex_
  std::shared_ptr<Stream> default_;             // guarded by mutex_
};

// A GPU by its number; numbers from 0 to Devices() - 1 exist.
Device& GetDevice(int number);
int Devices();
// The GPU of a context; null if there is no such context.
Device* DeviceOfContext(Handle context);

// The context stack of the calling thread.
std::vector<Handle>& ContextStack();

// While one lives the calling thread runs a host function and may not call CUDA.
class HostFunctionScope {
 public:
  HostFunctionScope();
  ~HostFunctionScope();
};

void Initialize();

// What every call asks first. The error to return: cuInit was not called, or a host function calls.
Result Gate();
// Also: the calling thread has a context, whose GPU (`device`) is not broken.
Result Gate(Device** device);
// Also: `device` is not broken.
Result GateOf(const Device& device);

// Objects by handles that are never used again. Use of a handle that was destroyed, or never made,
// aborts with a sentence. Thread-safe.
template <typename Object>
class Handles {
 public:
  Handles(const char* what, uintptr_t first) : what_(what), next_(first) {}

  Handle Add(std::shared_ptr<Object> object);
  std::shared_ptr<Object> Find(Handle handle, const char* call) const;
  std::shared_ptr<Object> Remove(Handle handle, const char* call);

 private:
  const char* const what_;
  mutable std::mutex mutex_;
  uintptr_t next_;                                     // guarded by mutex_
  std::map<Handle, std::shared_ptr<Object>> objects_;  // guarded by mutex_
};

Handles<Stream>& Streams();
Handles<Event>& Events();

// The stream of a handle: a default stream of the calling thread's GPU for 0, 1 and 2. The result
// is what the call has to return if it is not kSuccess.
Result FindStream(Handle handle, const char* call, std::shared_ptr<Stream>* stream);

}  // namespace fake_cuda

#endif  // TFRING_TESTS_FAKES_CUDA_DEVICE_H_
