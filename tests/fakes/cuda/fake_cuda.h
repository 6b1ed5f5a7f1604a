#ifndef TFRING_TESTS_FAKES_CUDA_FAKE_CUDA_H_
#define TFRING_TESTS_FAKES_CUDA_FAKE_CUDA_H_

#include <stddef.h>

// What the fake CUDA driver (libcuda.so.1 of the build's folder fakes/) exports beside the driver
// API. A test opens the library, or links with the target fake_cuda; FakeCudaApi below finds the
// functions in an opened one. Every function may be called on any thread.
//
// What the fake does otherwise than a GPU, so that a mistake fails instead of being lucky:
// - Device memory is an address range that nobody can read or write: a host that dereferences it
//   crashes. An address is never given out twice. Use by a copy or kernel of memory that is not
//   allocated (any more) aborts the process with a sentence.
// - New and freed memory is poisoned (0xA5, 0xDE). So is the destination of an asynchronous copy or
//   memset (0xC3): when the device comes to it, and already at the call if the device is idle.
// - Streams are threads that run late, see "seed", "delay_us" and "hold".
// - Handles are numbers that are never used again: a destroyed stream or event that is used aborts.
// - A module that is unloaded while a kernel of it is on a stream aborts.
// - cuMemFree does not wait for the device, unless "free_waits" is set: free nothing in use.
// - CUDA calls within a host function fail with CUDA_ERROR_NOT_PERMITTED.
// What it does as a GPU does: an asynchronous copy to host memory that is not pinned, or of more
// than 64 KiB from it, blocks the caller; an event that was never recorded is waited for by nobody.

#ifdef __cplusplus
extern "C" {
#endif

// An address at which the host may read and write `bytes` of device memory (or of host memory,
// which is returned as it is). Aborts with a sentence if it is device memory that is not allocated.
// For code that plays a kernel; valid until the memory is freed.
void* FakeCudaView(unsigned long long address, size_t bytes);

// Puts work on a stream that counts as a kernel: it runs late, is dropped after a sticky error, and
// can hang. Returns a CUresult.
int FakeCudaEnqueue(void* stream, void (*function)(void*), void* argument);

// Settings; each can also come from the environment (FAKE_CUDA_ and the name in capitals):
//   seed         0: each operation takes exactly delay_us, events and host functions no time.
//                Else everything takes a random time up to delay_us (500 if that is 0).
//   delay_us     how long copies, memsets and kernels take
//   hold         1: streams start nothing new until this is 0 again
//   devices      how many GPUs (1 to 16); before cuInit
//   uuid         first 8 bytes of the UUIDs of this process's GPUs, the last byte of which is the
//                GPU's number; 2 bytes of it are also the domain of their PCI bus ids
//   capability   compute capability, such as 90
//   memory_mib   memory of a GPU, in MiB
//   peer_access  whether GPUs can read each other's memory
//   free_waits   1: cuMemFree waits for the device, as a real one does
//   slow_event_us, hang_us   how long the faults of these names last; hang_us 0: for ever
//   fault_device the GPU on which faults strike; -1: all
//   log          1: a line on stderr per call that puts work on a stream
//   mig          1: the GPUs of this process are MIG instances of one card, with one PCI bus id
// An unknown name aborts with the list of names. FakeCudaGet returns a setting.
void FakeCudaSet(const char* what, long value);
long FakeCudaGet(const char* what);

// Counters since the start or the last FakeCudaReset. Copies in either direction, when they run:
//   h2d_copies, h2d_bytes, d2h_copies, d2h_bytes, d2d_copies
//   pageable_copies   asynchronous copies to or from host memory that is not pinned
// Other work, when it runs: launches (cuLaunchKernel)
// Calls: event_queries, blocking_calls (that wait for the device)
// What exists now: live_pinned, live_events
long FakeCudaCount(const char* what);

// Makes the nth operation from now on (1: the next one) fail; nth 0 takes the fault back.
//   sticky              instead of the nth copy, memset, kernel or host function to run, the device
//                       breaks: all calls return CUDA_ERROR_ILLEGAL_ADDRESS, all work is dropped
//   lost_host_function  the nth host function to run is not called
//   out_of_memory       the nth allocation of device or pinned memory fails
//   slow_event          the nth recorded event completes slow_event_us late
//   hang                the nth copy, memset or kernel to run takes hang_us more
// From the environment: FAKE_CUDA_INJECT=sticky:40,slow_event:3
void FakeCudaInject(const char* fault, long nth);

// What cuLaunchKernel of a kernel of this name runs. `sizes` are the sizes in bytes of its `count`
// parameters, in order, which are copied at the launch; without FakeCudaKernelParameters a launch
// aborts. A name without a twin is counted and does nothing.
void FakeCudaRegisterKernel(const char* name,
                            void (*twin)(void** parameters, unsigned grid, unsigned block));
void FakeCudaKernelParameters(const char* name, const size_t* sizes, int count);

// Repairs broken devices, drops their work, takes back settings, faults and counters (not memory,
// streams, events, kernels and the number of devices).
void FakeCudaReset(void);

#ifdef __cplusplus
}  // extern "C"

#include <dlfcn.h>

// The functions above in an opened libcuda.so.1; null where it is not the fake.
struct FakeCudaApi {
  explicit FakeCudaApi(void* library) {
    Find(library, "FakeCudaView", &View);
    Find(library, "FakeCudaEnqueue", &Enqueue);
    Find(library, "FakeCudaSet", &Set);
    Find(library, "FakeCudaGet", &Get);
    Find(library, "FakeCudaCount", &Count);
    Find(library, "FakeCudaInject", &Inject);
    Find(library, "FakeCudaRegisterKernel", &RegisterKernel);
    Find(library, "FakeCudaKernelParameters", &KernelParameters);
    Find(library, "FakeCudaReset", &Reset);
  }

  decltype(&FakeCudaView) View = nullptr;
  decltype(&FakeCudaEnqueue) Enqueue = nullptr;
  decltype(&FakeCudaSet) Set = nullptr;
  decltype(&FakeCudaGet) Get = nullptr;
  decltype(&FakeCudaCount) Count = nullptr;
  decltype(&FakeCudaInject) Inject = nullptr;
  decltype(&FakeCudaRegisterKernel) RegisterKernel = nullptr;
  decltype(&FakeCudaKernelParameters) KernelParameters = nullptr;
  decltype(&FakeCudaReset) Reset = nullptr;

 private:
  template <typename Function>
  static void Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
  }
};
#endif

#endif  // TFRING_TESTS_FAKES_CUDA_FAKE_CUDA_H_
