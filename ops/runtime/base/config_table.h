#ifndef TFRING_OPS_RUNTIME_BASE_CONFIG_TABLE_H_
#define TFRING_OPS_RUNTIME_BASE_CONFIG_TABLE_H_

// Made from tfring/runtime/settings by `make settings`: change the table there.

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/base/setting_types.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Every setting of the runtime, with its default. A value type, constant after init.
struct Config {
  // tfring fuses tensors into collectives of at most this many bytes. 0: no fusion.
  int64_t fusion_threshold_bytes = 134217728;
  // The response cache takes this many requests, which are then sent as ids. Half of it is for
  // names that come again. 0: no cache.
  int64_t cache_capacity = 1024;
  // tfring never fuses a grouped collective with others.
  bool disable_group_fusion = false;
  // Allreduces that repeat in each step run without asking rank 0 (tfring help locks).
  bool lock_schedule = false;
  // While this many plans run, tensors that become ready wait and are fused.
  int64_t max_plans_in_flight = 2;
  // Rank 0 keeps at most this much for calls that wait for other ranks. Calls beyond it fail with
  // ResourceExhaustedError.
  int64_t max_pending_bytes = 4294967296;
  // Eager collectives without a name fail where the ranks call them on different lines.
  bool call_site_check = true;
  // What happens if this rank's part of a sum holds NaN or Inf: warn (or 1), error (the call
  // fails), or 0 (no check). See tfring help values.
  ValueAction check_values = ValueAction::kIgnore;
  // Equal sums have equal bits each time: all algorithms add in one order. One host and several
  // hosts may still differ in 16-bit floats. For NCCL see tfring help gpu.
  bool deterministic = false;
  // Rank 0 warns when a tensor has waited this long for some ranks, and after at most 3 s if ranks
  // wait for each other. 0: no warning, and no end unless STALL_SHUTDOWN_TIME_SECONDS is set.
  Duration stall_warning = 10000000000;
  // The job ends when a tensor has waited this long, or a running collective has made no progress,
  // and after 45 s if ranks wait for each other in eager calls. 0: never.
  Duration stall_shutdown = 600000000000;
  // Idle ranks send a heartbeat this often. With 0 they send none.
  Duration heartbeat_interval = 5000000000;
  // A rank is lost when nothing has come from it for this long. At least three times
  // HEARTBEAT_SECONDS.
  Duration heartbeat_timeout = 60000000000;
  // Allreduces of at most this many bytes use direct exchange.
  int64_t direct_max_bytes = 32768;
  // Allreduces of at most this many bytes use a tree, larger ones the ring.
  int64_t tree_max_bytes = 262144;
  // Large collectives are pipelined in pieces of this many bytes.
  int64_t piece_bytes = 262144;
  // Allreduces over several hosts reduce within each host first: 0 never, 1 always, auto where that
  // is expected to be faster. tfring ignores 1 with DETERMINISTIC. See tfring help performance.
  Hierarchy hierarchical_allreduce = Hierarchy::kAuto;
  // A small message takes this long from host to host. HIERARCHICAL_ALLREDUCE=auto uses it and
  // NETWORK_BYTES_PER_SECOND. Neither is measured: tfring doctor -H a:4,b:4 shows their effect.
  Duration network_latency = 30000;
  // A host can send this many bytes a second to other hosts.
  int64_t network_bytes_per_second = 1250000000;
  // Ranks of one host exchange data through shared memory. 0: through sockets.
  bool shared_memory = true;
  // Sums, broadcasts and allgathers of one host's ranks go through memory that all of them see. 0:
  // from rank to rank.
  bool arena = true;
  // What carries tensors in host memory: auto (shared memory within a host where it is possible,
  // TCP between hosts), shm (the same, and init fails where ranks of a host cannot share memory),
  // tcp (no shared memory), mpi (MPI in place of TCP, tfring help configuration). Horovod's GLOO
  // and CCL are auto.
  CpuOperations cpu_operations = CpuOperations::kAuto;
  // What carries tensors in GPU memory: nccl, host (copies through the host), or auto: NCCL where
  // all ranks can. Horovod's MPI and GLOO are host.
  GpuOperations gpu_operations = GpuOperations::kAuto;
  // Path of libnccl.so.2. Without it tfring uses the one that is loaded, then that of the package
  // nvidia-nccl-cu12, then the system's.
  std::string nccl_library = "";
  // Path or name of the CUDA driver.
  std::string cuda_driver = "libcuda.so.1";
  // The lowest level that is logged, also as 0 to 4 (tfring help logs).
  int64_t log_level = 2;
  // json: one object a line.
  bool log_json = false;
  // Log lines have no time.
  bool log_hide_time = false;
  // A text, numbers aside, is logged this many times a minute and then counted. 0: no limit.
  int64_t log_repeats = 20;

  // The names of the settings that were set.
  std::vector<std::string> fixed = {};
};

// Calls `visit` with the name of each setting and with its field. A choice has a third argument:
// the values of the field, in the order of the table.
// clang-format off
template <typename Visit>
void VisitSettings(Config* config, const Visit& visit) {
  visit("FUSION_THRESHOLD", &config->fusion_threshold_bytes);
  visit("CACHE_CAPACITY", &config->cache_capacity);
  visit("DISABLE_GROUP_FUSION", &config->disable_group_fusion);
  visit("LOCK_SCHEDULE", &config->lock_schedule);
  visit("MAX_PLANS_IN_FLIGHT", &config->max_plans_in_flight);
  visit("MAX_PENDING_BYTES", &config->max_pending_bytes);
  visit("CALL_SITE_CHECK", &config->call_site_check);
  visit("CHECK_VALUES", &config->check_values, std::vector<ValueAction>{ValueAction::kIgnore, ValueAction::kWarn, ValueAction::kError});
  visit("DETERMINISTIC", &config->deterministic);
  visit("STALL_CHECK_TIME_SECONDS", &config->stall_warning);
  visit("STALL_SHUTDOWN_TIME_SECONDS", &config->stall_shutdown);
  visit("HEARTBEAT_SECONDS", &config->heartbeat_interval);
  visit("HEARTBEAT_TIMEOUT_SECONDS", &config->heartbeat_timeout);
  visit("DIRECT_MAX_BYTES", &config->direct_max_bytes);
  visit("TREE_MAX_BYTES", &config->tree_max_bytes);
  visit("PIECE_BYTES", &config->piece_bytes);
  visit("HIERARCHICAL_ALLREDUCE", &config->hierarchical_allreduce, std::vector<Hierarchy>{Hierarchy::kAuto, Hierarchy::kNever, Hierarchy::kAlways});
  visit("NETWORK_LATENCY_SECONDS", &config->network_latency);
  visit("NETWORK_BYTES_PER_SECOND", &config->network_bytes_per_second);
  visit("SHARED_MEMORY", &config->shared_memory);
  visit("ARENA", &config->arena);
  visit("CPU_OPERATIONS", &config->cpu_operations, std::vector<CpuOperations>{CpuOperations::kAuto, CpuOperations::kShm, CpuOperations::kTcp, CpuOperations::kMpi});
  visit("GPU_OPERATIONS", &config->gpu_operations, std::vector<GpuOperations>{GpuOperations::kAuto, GpuOperations::kNccl, GpuOperations::kHost});
  visit("NCCL_LIBRARY", &config->nccl_library);
  visit("CUDA_DRIVER", &config->cuda_driver);
  visit("LOG_LEVEL", &config->log_level, std::vector<int64_t>{0, 1, 2, 3, 4});
  visit("LOG_FORMAT", &config->log_json, std::vector<bool>{false, true});
  visit("LOG_HIDE_TIME", &config->log_hide_time);
  visit("LOG_REPEATS", &config->log_repeats);
}
// clang-format on

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_CONFIG_TABLE_H_
