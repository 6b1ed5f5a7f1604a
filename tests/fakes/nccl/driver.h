#ifndef TFRING_TESTS_FAKES_NCCL_DRIVER_H_
#define TFRING_TESTS_FAKES_NCCL_DRIVER_H_

#include <array>
#include <cstddef>
#include <string>

namespace fake_nccl {

using Uuid = std::array<char, 16>;

// What the fake needs of the fake CUDA driver, found in the driver that this process has loaded.
// Any thread. Without a fake driver the process ends with a sentence.
struct Device {
  int ordinal = -1;
  Uuid uuid{};
  Uuid bus{};  // the PCI bus id, as text
};

// The device of the calling thread's context. False if the thread has none.
bool CurrentDevice(Device* device);

// The device to which a stream belongs; the null stream belongs to the current one.
bool DeviceOfStream(void* stream, int* ordinal);

// Memory of the device as the host can read it. The driver ends the process if it is not allocated.
char* View(const void* address, size_t bytes);

// Work that counts as a kernel. False if the driver refused it (after a sticky error).
bool Enqueue(void* stream, void (*work)(void*), void* argument);

}  // namespace fake_nccl

#endif  // TFRING_TESTS_FAKES_NCCL_DRIVER_H_
