#ifndef TFRING_TESTS_FAKES_CUDA_SETTINGS_H_
#define TFRING_TESTS_FAKES_CUDA_SETTINGS_H_

#include <cstdarg>

// Settings, counters and faults: what fake_cuda.h explains under FakeCudaSet, FakeCudaCount and
// FakeCudaInject. All are atomic numbers.

namespace fake_cuda {

enum class Setting {
  kSeed,
  kDelayUs,
  kHold,
  kDevices,
  kUuid,
  kCapability,
  kMemoryMib,
  kPeerAccess,
  kFreeWaits,
  kSlowEventUs,
  kHangUs,
  kFaultDevice,
  kLog,
  kMig,
};

enum class Counter {
  kH2dCopies,
  kH2dBytes,
  kD2hCopies,
  kD2hBytes,
  kD2dCopies,
  kPageableCopies,
  kLaunches,
  kEventQueries,
  kBlockingCalls,
  kLivePinned,  // the rest says what exists now, and is not reset
  kLiveEvents,
};

enum class Fault { kSticky, kLostHostFunction, kOutOfMemory, kSlowEvent, kHang };

long Get(Setting setting);
void Count(Counter counter, long by = 1);

// Whether this operation on a device is the one that the fault was injected for.
bool Strikes(Fault fault, int device);

// Takes settings, faults and counters back.
void ResetSettings();

// Ends the process with a sentence on stderr: the tested program has made a mistake that a GPU
// would punish by chance only.
[[noreturn]] void Die(const char* format, ...) __attribute__((format(printf, 1, 2)));

// One line on stderr if the setting `log` is on.
void Log(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace fake_cuda

#endif  // TFRING_TESTS_FAKES_CUDA_SETTINGS_H_
