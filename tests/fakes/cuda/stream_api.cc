// The driver API's functions about streams, events and host functions.

#include <memory>
#include <utility>

#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/driver_types.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/cuda/settings.h"
#include "tests/fakes/cuda/stream.h"

using fake_cuda::Count;
using fake_cuda::Counter;
using fake_cuda::Device;
using fake_cuda::Event;
using fake_cuda::Events;
using fake_cuda::FindStream;
using fake_cuda::Gate;
using fake_cuda::Handle;
using fake_cuda::Mark;
using fake_cuda::Result;
using fake_cuda::Stream;
using fake_cuda::Streams;
using fake_cuda::Work;

namespace {

using fake_cuda::kSuccess;

// Finds an event; the result is what the call has to return if it is not kSuccess.
Result FindEvent(Handle handle, const char* call, std::shared_ptr<Event>* event) {
  const Result result = Gate();
  if (result != kSuccess) return result;
  *event = Events().Find(handle, call);
  return (*event)->device()->error();
}

Result PushTo(Handle handle, const char* call, Work work) {
  std::shared_ptr<Stream> stream;
  const Result result = FindStream(handle, call, &stream);
  if (result != kSuccess) return result;
  fake_cuda::Log("%s on stream %p", call, handle);
  stream->Push(std::move(work));
  return kSuccess;
}

}  // namespace

FAKE_CUDA_API Result cuStreamCreateWithPriority(Handle* handle, unsigned flags, int priority) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess) return result;
  *handle = Streams().Add(device->NewStream(priority, flags));
  return kSuccess;
}

FAKE_CUDA_API Result cuStreamCreate(Handle* handle, unsigned flags) {
  return cuStreamCreateWithPriority(handle, flags, 0);
}

// Does not wait: what is on the stream is done first.
FAKE_CUDA_API Result cuStreamDestroy_v2(Handle handle) {
  const Result result = Gate();
  if (result != kSuccess) return result;
  const std::shared_ptr<Stream> stream = Streams().Remove(handle, "cuStreamDestroy");
  stream->Close();
  return stream->device()->error();
}

FAKE_CUDA_API Result cuStreamGetPriority(Handle handle, int* priority) {
  std::shared_ptr<Stream> stream;
  const Result result = FindStream(handle, "cuStreamGetPriority", &stream);
  if (result == kSuccess) *priority = stream->priority();
  return result;
}

FAKE_CUDA_API Result cuStreamGetFlags(Handle handle, unsigned* flags) {
  std::shared_ptr<Stream> stream;
  const Result result = FindStream(handle, "cuStreamGetFlags", &stream);
  if (result == kSuccess) *flags = stream->flags();
  return result;
}

FAKE_CUDA_API Result cuStreamGetCtx(Handle handle, Handle* context) {
  std::shared_ptr<Stream> stream;
  const Result result = FindStream(handle, "cuStreamGetCtx", &stream);
  if (result == kSuccess) *context = stream->device()->context();
  return result;
}

FAKE_CUDA_API Result cuStreamIsCapturing(Handle handle, int* status) {
  std::shared_ptr<Stream> stream;
  *status = 0;
  return FindStream(handle, "cuStreamIsCapturing", &stream);
}

FAKE_CUDA_API Result cuStreamQuery(Handle handle) {
  std::shared_ptr<Stream> stream;
  const Result result = FindStream(handle, "cuStreamQuery", &stream);
  if (result != kSuccess) return result;
  return stream->IsIdle() ? kSuccess : fake_cuda::kNotReady;
}

FAKE_CUDA_API Result cuStreamSynchronize(Handle handle) {
  std::shared_ptr<Stream> stream;
  const Result result = FindStream(handle, "cuStreamSynchronize", &stream);
  if (result != kSuccess) return result;
  Count(Counter::kBlockingCalls);
  stream->MarkEnd()->Wait();
  return stream->device()->error();
}

// An event that was never recorded is waited for by nobody.
FAKE_CUDA_API Result cuStreamWaitEvent(Handle handle, Handle event_handle, unsigned) {
  std::shared_ptr<Event> event;
  Result result = FindEvent(event_handle, "cuStreamWaitEvent", &event);
  if (result != kSuccess) return result;
  std::shared_ptr<Mark> mark = event->Last();
  if (mark == nullptr) {
    mark = std::make_shared<Mark>();
    mark->Set();
  }
  return PushTo(handle, "cuStreamWaitEvent",
                {Work::Kind::kWait, nullptr, nullptr, std::move(mark)});
}

FAKE_CUDA_API Result cuEventCreate(Handle* handle, unsigned) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess) return result;
  *handle = Events().Add(std::make_shared<Event>(device));
  Count(Counter::kLiveEvents);
  return kSuccess;
}

// Does not wait: who waits for the event already still does.
FAKE_CUDA_API Result cuEventDestroy_v2(Handle handle) {
  const Result result = Gate();
  if (result != kSuccess) return result;
  const std::shared_ptr<Event> event = Events().Remove(handle, "cuEventDestroy");
  Count(Counter::kLiveEvents, -1);
  return event->device()->error();
}

FAKE_CUDA_API Result cuEventRecord(Handle event_handle, Handle handle) {
  std::shared_ptr<Event> event;
  Result result = FindEvent(event_handle, "cuEventRecord", &event);
  if (result != kSuccess) return result;
  std::shared_ptr<Stream> stream;
  result = FindStream(handle, "cuEventRecord", &stream);
  if (result != kSuccess) return result;
  if (stream->device() != event->device()) return fake_cuda::kInvalidHandle;
  auto mark = std::make_shared<Mark>();
  event->SetLast(mark);
  stream->Push({Work::Kind::kRecord, nullptr, nullptr, mark});
  return kSuccess;
}

FAKE_CUDA_API Result cuEventRecordWithFlags(Handle event, Handle stream, unsigned) {
  return cuEventRecord(event, stream);
}

FAKE_CUDA_API Result cuEventQuery(Handle handle) {
  std::shared_ptr<Event> event;
  const Result result = FindEvent(handle, "cuEventQuery", &event);
  if (result != kSuccess) return result;
  Count(Counter::kEventQueries);
  const std::shared_ptr<Mark> mark = event->Last();
  if (mark == nullptr) return kSuccess;
  const bool done = mark->IsSet();
  if (event->device()->error() != kSuccess) return event->device()->error();
  return done ? kSuccess : fake_cuda::kNotReady;
}

FAKE_CUDA_API Result cuEventSynchronize(Handle handle) {
  std::shared_ptr<Event> event;
  const Result result = FindEvent(handle, "cuEventSynchronize", &event);
  if (result != kSuccess) return result;
  Count(Counter::kBlockingCalls);
  if (const std::shared_ptr<Mark> mark = event->Last()) mark->Wait();
  return event->device()->error();
}

FAKE_CUDA_API Result cuEventElapsedTime(float* milliseconds, Handle, Handle) {
  *milliseconds = 1;  // times mean nothing here
  return Gate();
}

FAKE_CUDA_API Result cuLaunchHostFunc(Handle handle, void (*function)(void*), void* argument) {
  return PushTo(handle, "cuLaunchHostFunc",
                {Work::Kind::kHostFunction, nullptr, [=] { function(argument); }, nullptr});
}

FAKE_CUDA_API Result cuStreamAddCallback(Handle handle, void (*function)(Handle, Result, void*),
                                         void* argument, unsigned) {
  return PushTo(
      handle, "cuStreamAddCallback",
      {Work::Kind::kHostFunction, nullptr, [=] { function(handle, kSuccess, argument); }, nullptr});
}

FAKE_CUDA_API int FakeCudaEnqueue(void* handle, void (*function)(void*), void* argument) {
  return PushTo(handle, "FakeCudaEnqueue",
                {Work::Kind::kTask, nullptr, [=] { function(argument); }, nullptr});
}
