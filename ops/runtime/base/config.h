#ifndef TFRING_OPS_RUNTIME_BASE_CONFIG_H_
#define TFRING_OPS_RUNTIME_BASE_CONFIG_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// What carries tensors in GPU memory: NCCL where all ranks can use it, else the host; NCCL or an
// error; always the host.
enum class GpuOperations { kAuto, kNccl, kHost };

// What carries tensors in host memory: shared memory within a host where that is possible, and TCP;
// the same, and an error where shared memory is not possible; TCP alone; shared memory within a
// host where that is possible, and MPI.
enum class CpuOperations { kAuto, kShm, kTcp, kMpi };

// What happens when this rank's part of a reduction holds NaN or infinities: nothing; a warning; an
// error of the call.
enum class ValueAction { kIgnore, kWarn, kError };

// Bounds of Config::piece_bytes, also where rank 0 changes it.
inline constexpr int64_t kMinPieceBytes = 64;
inline constexpr int64_t kMaxPieceBytes = int64_t{1} << 40;

// Whether allreduces of ranks on several hosts reduce within each host first: where that is
// expected to be faster; never; always.
enum class Hierarchy { kAuto, kNever, kAlways };

// Every setting of the runtime, with its default. Python reads the environment (TFRING_X, or
// HOROVOD_X as an alias) and hands it over as strings: the runtime itself never calls getenv. A
// value type, constant after init.
struct Config {
  int64_t fusion_threshold_bytes = 128LL << 20;  // FUSION_THRESHOLD; 0 disables fusion
  int64_t cache_capacity = 1024;                 // CACHE_CAPACITY; 0 disables the response cache
  bool disable_group_fusion = false;             // DISABLE_GROUP_FUSION
  int64_t max_plans_in_flight = 2;               // MAX_PLANS_IN_FLIGHT, then batch while busy
  bool lock_schedule = false;                    // LOCK_SCHEDULE: repeat without control messages
  Duration stall_warning = 10 * kSecond;         // STALL_CHECK_TIME_SECONDS; 0 disables the check
  Duration stall_shutdown = 600 * kSecond;       // STALL_SHUTDOWN_TIME_SECONDS; 0 is never
  int64_t max_pending_bytes = 4LL << 30;         // MAX_PENDING_BYTES: of requests at rank 0
  Duration heartbeat_interval = 5 * kSecond;     // HEARTBEAT_SECONDS; 0 disables heartbeats
  Duration heartbeat_timeout = 30 * kSecond;     // HEARTBEAT_TIMEOUT_SECONDS
  int64_t direct_max_bytes = 32 << 10;     // DIRECT_MAX_BYTES: direct exchange up to this size
  int64_t tree_max_bytes = 256 << 10;      // TREE_MAX_BYTES: binomial tree up to this size
  int64_t piece_bytes = 256 << 10;         // PIECE_BYTES: pipelining unit of large collectives
  bool autotune = false;                   // AUTOTUNE: search for the best of some settings
  std::string autotune_log;                // AUTOTUNE_LOG: a file of rank 0; empty: none
  int64_t autotune_warmup_samples = 3;     // AUTOTUNE_WARMUP_SAMPLES: first ones, not counted
  int64_t autotune_steps_per_sample = 10;  // AUTOTUNE_STEPS_PER_SAMPLE
  int64_t autotune_samples = 5;            // AUTOTUNE_SAMPLES: of each trial
  bool deterministic = false;              // DETERMINISTIC: the same bits each time
  Hierarchy hierarchical_allreduce = Hierarchy::kAuto;  // HIERARCHICAL_ALLREDUCE
  Duration network_latency = 30'000;  // NETWORK_LATENCY_SECONDS: a small message between hosts
  int64_t network_bytes_per_second = 1'250'000'000;  // NETWORK_BYTES_PER_SECOND: of a host
  DataType wire_dtype = DataType::kFloat32;          // WIRE_DTYPE: of float32 sums between hosts
  bool call_site_check = true;  // CALL_SITE_CHECK: of eager calls without a name
  ValueAction check_values = ValueAction::kIgnore;  // CHECK_VALUES
  bool shared_memory = true;                        // SHARED_MEMORY: within a host; else sockets
  bool arena = true;  // ARENA: collectives within a host go through memory that all ranks see
  CpuOperations cpu_operations = CpuOperations::kAuto;  // CPU_OPERATIONS
  GpuOperations gpu_operations = GpuOperations::kAuto;  // GPU_OPERATIONS
  std::string nccl_library;                             // NCCL_LIBRARY: a path; empty: see LoadNccl
  std::string cuda_driver = "libcuda.so.1";             // CUDA_DRIVER: what dlopen gets
  int64_t log_level = 2;       // LOG_LEVEL: 0 trace 1 debug 2 info 3 warning 4 error
  bool log_json = false;       // LOG_FORMAT: text or json
  bool log_hide_time = false;  // LOG_HIDE_TIME
  int64_t log_repeats = 20;    // LOG_REPEATS: lines of the same text a minute; 0 is no limit
  // Names of settings that autotuning leaves alone: those that were set.
  std::vector<std::string> fixed = {};
};

// Parses {"FUSION_THRESHOLD": "1048576", ...}. InvalidArgument names the variable, its value and
// what is allowed. Unknown names are an error too: a typo must not be ignored.
TFRING_EXPORT Result<Config> ParseConfig(const std::map<std::string, std::string>& values);

// Name, default and meaning of every setting, for `tfring doctor` and the documentation.
TFRING_EXPORT std::string DescribeConfig();

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_CONFIG_H_
