// The driver API's functions about memory: allocation, copies, memset.

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/driver_types.h"
#include "tests/fakes/cuda/memory.h"
#include "tests/fakes/cuda/settings.h"
#include "tests/fakes/cuda/stream.h"

using fake_cuda::Address;
using fake_cuda::Bytes;
using fake_cuda::Count;
using fake_cuda::Counter;
using fake_cuda::Device;
using fake_cuda::FindStream;
using fake_cuda::Gate;
using fake_cuda::Handle;
using fake_cuda::Memory;
using fake_cuda::Result;
using fake_cuda::Setting;
using fake_cuda::Stream;
using fake_cuda::Work;

namespace {

using fake_cuda::kSuccess;

enum class Place { kDevice, kPinned, kPageable };

Place PlaceOf(Address address) {
  Memory::Range range;
  if (Memory::Get().FindDevice(address, &range)) return Place::kDevice;
  return Memory::Get().FindPinned(address, &range) ? Place::kPinned : Place::kPageable;
}

Address AddressOf(const void* data) { return reinterpret_cast<Address>(data); }

// One end of an operation that runs later. What kind of memory it is was found at the call: device
// memory that is freed until then must not be taken for host memory.
struct End {
  explicit End(Address at) : address(at), place(PlaceOf(at)) {}

  Bytes Resolve(size_t bytes, const char* use) const {
    if (place == Place::kPinned && PlaceOf(address) != Place::kPinned) {
      fake_cuda::Die("%s of %zu bytes at %#llx: this pinned memory has been freed", use, bytes,
                     address);
    }
    return Memory::Get().Resolve(address, bytes, use);
  }

  Address address;
  Place place;
};

void Poison(const End& to, size_t bytes) {
  const Bytes target = to.Resolve(bytes, "a write");
  std::memset(target.data, fake_cuda::kInFlightPoison, bytes);
}

void CountCopy(Place to, Place from, size_t bytes) {
  const auto by = static_cast<long>(bytes);
  if (to == Place::kDevice && from == Place::kDevice) {
    Count(Counter::kD2dCopies);
  } else if (from == Place::kDevice) {
    Count(Counter::kD2hCopies);
    Count(Counter::kD2hBytes, by);
  } else if (to == Place::kDevice) {
    Count(Counter::kH2dCopies);
    Count(Counter::kH2dBytes, by);
  }
}

// Puts a write of `bytes` to `to` on the stream. Nobody may look at the target before it is done,
// so it is poisoned when the stream comes to it; and at once if nothing that runs can still use it.
void PushWrite(Stream* stream, const End& to, size_t bytes, bool poison,
               std::function<void()> write) {
  std::function<void()> begin;
  if (poison) begin = [to, bytes] { Poison(to, bytes); };
  if (poison && stream->device()->IsIdle()) begin();
  stream->Push({Work::Kind::kTask, std::move(begin), std::move(write), nullptr});
}

// Up to this size a copy from memory that is not pinned reads it at the call and does not wait.
constexpr size_t kStagedBytes = 64 << 10;

// A copy in stream order. As on a GPU, memory that is not pinned is read, or written, before the
// call returns, which therefore waits, but for small sources.
Result Copy(Address to_address, Address from_address, size_t bytes, Handle handle,
            const char* call) {
  std::shared_ptr<Stream> stream;
  const Result result = FindStream(handle, call, &stream);
  if (result != kSuccess || bytes == 0) return result;
  const End to(to_address);
  const End from(from_address);
  fake_cuda::Log("%s of %zu bytes to %#llx from %#llx on stream %p", call, bytes, to_address,
                 from_address, handle);
  to.Resolve(bytes, "a copy to it");  // a wrong address fails at the call
  from.Resolve(bytes, "a copy from it");
  const bool pageable = to.place == Place::kPageable || from.place == Place::kPageable;
  if (pageable) Count(Counter::kPageableCopies);
  Bytes staged;
  if (from.place == Place::kPageable && bytes <= kStagedBytes) {
    staged.keep = std::shared_ptr<char>(new char[bytes], std::default_delete<char[]>());
    staged.data = static_cast<char*>(staged.keep.get());
    std::memcpy(staged.data, reinterpret_cast<const char*>(from_address), bytes);
  }
  const bool apart = to_address >= from_address + bytes || from_address >= to_address + bytes;
  PushWrite(stream.get(), to, bytes, apart, [to, from, staged, bytes] {
    const Bytes source = staged.data != nullptr ? staged : from.Resolve(bytes, "a copy from it");
    const Bytes target = to.Resolve(bytes, "a copy to it");
    std::memmove(target.data, source.data, bytes);
    CountCopy(to.place, from.place, bytes);
  });
  if (!pageable || (staged.data != nullptr && to.place != Place::kPageable)) return kSuccess;
  Count(Counter::kBlockingCalls);
  stream->MarkEnd()->Wait();
  return stream->device()->error();
}

// A copy that is there when the call returns, whatever kind the memory is.
Result CopyNow(Address to, Address from, size_t bytes, const char* call) {
  std::shared_ptr<Stream> stream;
  Result result = FindStream(nullptr, call, &stream);
  if (result != kSuccess) return result;
  result = Copy(to, from, bytes, nullptr, call);
  if (result != kSuccess) return result;
  Count(Counter::kBlockingCalls);
  stream->MarkEnd()->Wait();
  return stream->device()->error();
}

template <typename Element>
Result Set(Address address, Element value, size_t count, Handle handle, const char* call) {
  std::shared_ptr<Stream> stream;
  const Result result = FindStream(handle, call, &stream);
  if (result != kSuccess || count == 0) return result;
  const End to(address);
  const size_t bytes = count * sizeof(Element);
  to.Resolve(bytes, "a memset");
  PushWrite(stream.get(), to, bytes, true, [to, bytes, count, value] {
    const Bytes target = to.Resolve(bytes, "a memset");
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(target.data + i * sizeof(Element), &value, sizeof(Element));
    }
  });
  return kSuccess;
}

template <typename Element>
Result SetNow(Address address, Element value, size_t count, const char* call) {
  std::shared_ptr<Stream> stream;
  Result result = FindStream(nullptr, call, &stream);
  if (result == kSuccess) result = Set(address, value, count, nullptr, call);
  if (result != kSuccess) return result;
  Count(Counter::kBlockingCalls);
  stream->MarkEnd()->Wait();
  return stream->device()->error();
}

}  // namespace

FAKE_CUDA_API Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess) return result;
  *free = Memory::Get().FreeBytes(device->number());
  *total = Memory::TotalBytes();
  return kSuccess;
}

FAKE_CUDA_API Result cuMemAlloc_v2(Address* address, size_t bytes) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  return result != kSuccess ? result : Memory::Get().Allocate(device->number(), bytes, address);
}

FAKE_CUDA_API Result cuMemFree_v2(Address address) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess || address == 0) return result;
  if (fake_cuda::Get(Setting::kFreeWaits) != 0) device->Synchronize();
  return Memory::Get().Free(address);
}

FAKE_CUDA_API Result cuMemHostAlloc(void** data, size_t bytes, unsigned) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess) return result;
  if (fake_cuda::Strikes(fake_cuda::Fault::kOutOfMemory, device->number())) {
    return fake_cuda::kOutOfMemory;
  }
  *data = Memory::Get().AllocatePinned(bytes);
  return *data == nullptr ? fake_cuda::kOutOfMemory : kSuccess;
}

FAKE_CUDA_API Result cuMemAllocHost_v2(void** data, size_t bytes) {
  return cuMemHostAlloc(data, bytes, 0);
}

FAKE_CUDA_API Result cuMemFreeHost(void* data) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess) return result;
  Memory::Get().FreePinned(data);
  return kSuccess;
}

FAKE_CUDA_API Result cuMemHostRegister_v2(void* data, size_t bytes, unsigned) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  return result != kSuccess ? result : Memory::Get().RegisterPinned(data, bytes);
}

FAKE_CUDA_API Result cuMemHostUnregister(void* data) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  return result != kSuccess ? result : Memory::Get().UnregisterPinned(data);
}

FAKE_CUDA_API Result cuMemHostGetDevicePointer_v2(Address* address, void* data, unsigned) {
  *address = AddressOf(data);
  return PlaceOf(*address) == Place::kPinned ? Gate() : fake_cuda::kInvalidValue;
}

FAKE_CUDA_API Result cuMemGetAddressRange_v2(Address* base, size_t* bytes, Address address) {
  Memory::Range range;
  if (!Memory::Get().FindDevice(address, &range)) return fake_cuda::kNotFound;
  if (base != nullptr) *base = range.begin;
  if (bytes != nullptr) *bytes = range.bytes;
  return Gate();
}

FAKE_CUDA_API Result cuPointerGetAttribute(void* value, int attribute, Address address) {
  Memory::Range range;
  const bool on_device = Memory::Get().FindDevice(address, &range);
  if (!on_device && !Memory::Get().FindPinned(address, &range)) {
    fake_cuda::Log("cuPointerGetAttribute %d of %#llx, which it does not know", attribute, address);
    return fake_cuda::kInvalidValue;
  }
  switch (attribute) {
    case 1:  // CONTEXT
      *static_cast<Handle*>(value) = fake_cuda::GetDevice(range.device).context();
      break;
    case 2:  // MEMORY_TYPE: host or device
      *static_cast<unsigned*>(value) = on_device ? 2 : 1;
      break;
    case 8:  // IS_MANAGED
      *static_cast<unsigned*>(value) = 0;
      break;
    case 9:  // DEVICE_ORDINAL
      *static_cast<int*>(value) = range.device;
      break;
    default:
      fake_cuda::Log("cuPointerGetAttribute does not know attribute %d", attribute);
      return fake_cuda::kInvalidValue;
  }
  return Gate();
}

FAKE_CUDA_API Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes,
                                          Handle stream) {
  return Copy(to, AddressOf(from), bytes, stream, "cuMemcpyHtoDAsync");
}

FAKE_CUDA_API Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Handle stream) {
  return Copy(AddressOf(to), from, bytes, stream, "cuMemcpyDtoHAsync");
}

FAKE_CUDA_API Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Handle stream) {
  return Copy(to, from, bytes, stream, "cuMemcpyDtoDAsync");
}

FAKE_CUDA_API Result cuMemcpyAsync(Address to, Address from, size_t bytes, Handle stream) {
  return Copy(to, from, bytes, stream, "cuMemcpyAsync");
}

FAKE_CUDA_API Result cuMemcpyPeerAsync(Address to, Handle, Address from, Handle, size_t bytes,
                                       Handle stream) {
  return Copy(to, from, bytes, stream, "cuMemcpyPeerAsync");
}

FAKE_CUDA_API Result cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  return CopyNow(to, AddressOf(from), bytes, "cuMemcpyHtoD");
}

FAKE_CUDA_API Result cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
  return CopyNow(AddressOf(to), from, bytes, "cuMemcpyDtoH");
}

FAKE_CUDA_API Result cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
  return CopyNow(to, from, bytes, "cuMemcpyDtoD");
}

FAKE_CUDA_API Result cuMemcpy(Address to, Address from, size_t bytes) {
  return CopyNow(to, from, bytes, "cuMemcpy");
}

FAKE_CUDA_API Result cuMemsetD8Async(Address to, unsigned char value, size_t count, Handle stream) {
  return Set(to, value, count, stream, "cuMemsetD8Async");
}

FAKE_CUDA_API Result cuMemsetD16Async(Address to, uint16_t value, size_t count, Handle stream) {
  return Set(to, value, count, stream, "cuMemsetD16Async");
}

FAKE_CUDA_API Result cuMemsetD32Async(Address to, uint32_t value, size_t count, Handle stream) {
  return Set(to, value, count, stream, "cuMemsetD32Async");
}

FAKE_CUDA_API Result cuMemsetD8_v2(Address to, unsigned char value, size_t count) {
  return SetNow(to, value, count, "cuMemsetD8");
}

FAKE_CUDA_API Result cuMemsetD32_v2(Address to, uint32_t value, size_t count) {
  return SetNow(to, value, count, "cuMemsetD32");
}
