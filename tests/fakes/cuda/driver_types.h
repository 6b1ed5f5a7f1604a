#ifndef TFRING_TESTS_FAKES_CUDA_DRIVER_TYPES_H_
#define TFRING_TESTS_FAKES_CUDA_DRIVER_TYPES_H_

#include <cstdint>

// The part of the CUDA driver API's types and numbers that the fake needs (CUDA 12). Handles are
// numbers; nobody dereferences them.

#define FAKE_CUDA_API extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

using Result = int;
using Address = unsigned long long;
using Handle = void*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;
inline constexpr Result kHostMemoryAlreadyRegistered = 712;
inline constexpr Result kHostMemoryNotRegistered = 713;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;

inline constexpr int kDriverVersion = 12080;
inline constexpr int kMaxDevices = 16;

}  // namespace fake_cuda

#endif  // TFRING_TESTS_FAKES_CUDA_DRIVER_TYPES_H_
