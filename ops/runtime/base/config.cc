#include "ops/runtime/base/config.h"

#include <cmath>
#include <iterator>
#include <optional>
#include <sstream>
#include <variant>
#include <vector>

#include "ops/runtime/base/setting_values.h"

namespace tfring {
namespace {

enum class Unit {
  kCount,
  kBytes,
  kSeconds,
  kFlag,
  kLevel,
  kLogFormat,
  kPath,
  kCpuOperations,
  kGpuOperations,
  kHierarchy,
  kValueAction,
  kWireDtype
};

// One row per setting: its name, bounds and meaning. Bounds are in the unit that the user writes.
// Tests compare names and defaults with tfring/config.py, docs/configuration.md and --help.
struct Setting {
  const char* name;
  Unit unit;
  std::variant<int64_t Config::*, bool Config::*, std::string Config::*, CpuOperations Config::*,
               GpuOperations Config::*, Hierarchy Config::*, ValueAction Config::*,
               DataType Config::*>
      member;
  int64_t min;
  int64_t max;
  const char* meaning;

  template <typename T>
  T Config::* as() const {
    return std::get<T Config::*>(member);
  }
};

constexpr int64_t kMaxBytes = int64_t{1} << 40;
constexpr int64_t kMaxSeconds = 365 * 86400;

constexpr Setting kSettings[] = {
    {"FUSION_THRESHOLD", Unit::kBytes, &Config::fusion_threshold_bytes, 0, kMaxBytes,
     "small tensors are fused into one collective up to this size; 0 disables fusion"},
    {"CACHE_CAPACITY", Unit::kCount, &Config::cache_capacity, 0, 1 << 20,
     "how many requests the response cache remembers; 0 disables it"},
    {"DISABLE_GROUP_FUSION", Unit::kFlag, &Config::disable_group_fusion, 0, 1,
     "never fuse a grouped collective with others"},
    {"MAX_PLANS_IN_FLIGHT", Unit::kCount, &Config::max_plans_in_flight, 1, 1 << 20,
     "fused collectives under way before what becomes ready is held back and fused"},
    {"LOCK_SCHEDULE", Unit::kFlag, &Config::lock_schedule, 0, 1,
     "run allreduces that repeat from step to step without asking rank 0"},
    {"MAX_PENDING_BYTES", Unit::kBytes, &Config::max_pending_bytes, 1 << 16, kMaxBytes,
     "memory of rank 0 for calls that wait for other ranks; calls beyond it end with an error"},
    {"STALL_CHECK_TIME_SECONDS", Unit::kSeconds, &Config::stall_warning, 0, kMaxSeconds,
     "warn when ranks have waited so long for a tensor, for each other 3 s at most; 0: no check"},
    {"STALL_SHUTDOWN_TIME_SECONDS", Unit::kSeconds, &Config::stall_shutdown, 0, kMaxSeconds,
     "end the job when a tensor has stalled this long; 0 is never"},
    {"HEARTBEAT_SECONDS", Unit::kSeconds, &Config::heartbeat_interval, 0, kMaxSeconds,
     "how often idle ranks show that they are alive; 0 disables heartbeats"},
    {"HEARTBEAT_TIMEOUT_SECONDS", Unit::kSeconds, &Config::heartbeat_timeout, 0, kMaxSeconds,
     "silence after which a rank counts as lost"},
    {"DIRECT_MAX_BYTES", Unit::kBytes, &Config::direct_max_bytes, 0, kMaxBytes,
     "allreduces up to this size go by direct exchange"},
    {"TREE_MAX_BYTES", Unit::kBytes, &Config::tree_max_bytes, 0, kMaxBytes,
     "allreduces up to this size go along a binomial tree, larger ones around the ring"},
    {"PIECE_BYTES", Unit::kBytes, &Config::piece_bytes, kMinPieceBytes, kMaxPieceBytes,
     "unit in which large collectives are pipelined"},
    {"DETERMINISTIC", Unit::kFlag, &Config::deterministic, 0, 1,
     "the same sums have the same bits each time: fixed orders, on GPUs no fusion of reductions"},
    {"HIERARCHICAL_ALLREDUCE", Unit::kHierarchy, &Config::hierarchical_allreduce, 0, 0,
     "allreduces over several hosts reduce within each first: 0, 1, or auto, where it is faster"},
    {"NETWORK_LATENCY_SECONDS", Unit::kSeconds, &Config::network_latency, 0, 10,
     "what a small message takes from host to host, by which allreduces are chosen"},
    {"NETWORK_BYTES_PER_SECOND", Unit::kBytes, &Config::network_bytes_per_second, 1 << 10,
     kMaxBytes, "what a host can send to others, by which allreduces are chosen"},
    {"WIRE_DTYPE", Unit::kWireDtype, &Config::wire_dtype, 0, 0,
     "how sums of float32 travel between hosts: float32, or rounded to bfloat16 or float16"},
    {"CALL_SITE_CHECK", Unit::kFlag, &Config::call_site_check, 0, 1,
     "refuse eager collectives without a name that the ranks call on different lines"},
    {"CHECK_VALUES", Unit::kValueAction, &Config::check_values, 0, 0,
     "when this rank's part of a sum holds NaN or Inf: warn, error (the call fails), 0: no look"},
    {"SHARED_MEMORY", Unit::kFlag, &Config::shared_memory, 0, 1,
     "ranks of one host exchange data through shared memory; 0 makes them use sockets"},
    {"ARENA", Unit::kFlag, &Config::arena, 0, 1,
     "collectives within a host go through memory that all its ranks see; 0: from rank to rank"},
    {"CPU_OPERATIONS", Unit::kCpuOperations, &Config::cpu_operations, 0, 0,
     "what carries tensors in host memory: auto (shared memory within hosts, TCP), shm, tcp, mpi"},
    {"GPU_OPERATIONS", Unit::kGpuOperations, &Config::gpu_operations, 0, 0,
     "what carries tensors in GPU memory: auto (NCCL where all ranks can, or host), nccl, host"},
    {"NCCL_LIBRARY", Unit::kPath, &Config::nccl_library, 0, 0,
     "path of libnccl.so.2; empty: the loaded one, that of nvidia-nccl, or the system's"},
    {"CUDA_DRIVER", Unit::kPath, &Config::cuda_driver, 0, 0, "path or name of the CUDA driver"},
    {"LOG_LEVEL", Unit::kLevel, &Config::log_level, 0, 4,
     "trace, debug, info, warning or error, or 0 to 4"},
    {"LOG_FORMAT", Unit::kLogFormat, &Config::log_json, 0, 1,
     "how lines of the log look: text, or json, one object a line"},
    {"LOG_HIDE_TIME", Unit::kFlag, &Config::log_hide_time, 0, 1, "leave the time out of the log"},
    {"LOG_REPEATS", Unit::kCount, &Config::log_repeats, 0, 1 << 20,
     "log the same text, numbers aside, so many times a minute and then its count; 0 is no limit"},
};

constexpr Setting kAutotuneSettings[] = {
    {"AUTOTUNE", Unit::kFlag, &Config::autotune, 0, 1,
     "in the first steps try values of FUSION_THRESHOLD, MAX_PLANS_IN_FLIGHT and PIECE_BYTES, "
     "those that are not set, and keep the best"},
    {"AUTOTUNE_LOG", Unit::kPath, &Config::autotune_log, 0, 0,
     "file in which rank 0 writes a line for each trial, as CSV; empty: none"},
    {"AUTOTUNE_WARMUP_SAMPLES", Unit::kCount, &Config::autotune_warmup_samples, 0, 1 << 20,
     "samples before the first trial"},
    {"AUTOTUNE_STEPS_PER_SAMPLE", Unit::kCount, &Config::autotune_steps_per_sample, 1, 1 << 20,
     "training steps in one sample"},
    {"AUTOTUNE_SAMPLES", Unit::kCount, &Config::autotune_samples, 1, 1 << 10,
     "samples in one trial, whose median counts"},
};

std::vector<const Setting*> AllSettings() {
  std::vector<const Setting*> all;
  for (const Setting& setting : kSettings) all.push_back(&setting);
  for (const Setting& setting : kAutotuneSettings) all.push_back(&setting);
  return all;
}

const Setting* FindSetting(const std::string& name) {
  for (const Setting* setting : AllSettings()) {
    if (name == setting->name) return setting;
  }
  return nullptr;
}

// Stores `text` if it is a valid value.
bool Apply(const Setting& setting, const std::string& text, Config* config) {
  if (setting.unit == Unit::kPath) {
    config->*setting.as<std::string>() = text;
    return true;
  }
  if (setting.unit == Unit::kCpuOperations) {
    const std::optional<CpuOperations> operations = ParseCpuOperations(text);
    if (operations) config->*setting.as<CpuOperations>() = *operations;
    return operations.has_value();
  }
  if (setting.unit == Unit::kGpuOperations) {
    const std::optional<GpuOperations> operations = ParseGpuOperations(text);
    if (operations) config->*setting.as<GpuOperations>() = *operations;
    return operations.has_value();
  }
  if (setting.unit == Unit::kHierarchy) {
    const std::optional<Hierarchy> hierarchy = ParseHierarchy(text);
    if (hierarchy) config->*setting.as<Hierarchy>() = *hierarchy;
    return hierarchy.has_value();
  }
  if (setting.unit == Unit::kValueAction) {
    const std::optional<ValueAction> action = ParseValueAction(text);
    if (action) config->*setting.as<ValueAction>() = *action;
    return action.has_value();
  }
  if (setting.unit == Unit::kWireDtype) {
    const std::optional<DataType> dtype = ParseWireDtype(text);
    if (dtype) config->*setting.as<DataType>() = *dtype;
    return dtype.has_value();
  }
  if (setting.unit == Unit::kFlag || setting.unit == Unit::kLogFormat) {
    const std::optional<bool> flag =
        setting.unit == Unit::kFlag ? ParseFlag(text) : ParseLogFormat(text);
    if (flag) config->*setting.as<bool>() = *flag;
    return flag.has_value();
  }
  if (setting.unit == Unit::kSeconds) {
    const std::optional<double> seconds = ParseSeconds(text);
    if (!seconds || *seconds < setting.min || *seconds > setting.max) return false;
    config->*setting.as<int64_t>() = std::llround(*seconds * static_cast<double>(kSecond));
    return true;
  }
  const std::optional<int64_t> number =
      setting.unit == Unit::kLevel ? ParseLevel(text) : ParseInteger(text);
  if (!number || *number < setting.min || *number > setting.max) return false;
  config->*setting.as<int64_t>() = *number;
  return true;
}

std::string Allowed(const Setting& setting) {
  const std::string range =
      "from " + std::to_string(setting.min) + " to " + std::to_string(setting.max);
  switch (setting.unit) {
    case Unit::kFlag:
      return "0 or 1";
    case Unit::kLevel:
      return setting.meaning;
    case Unit::kSeconds:
      return "a number of seconds " + range;
    case Unit::kBytes:
      return "a whole number of bytes " + range;
    case Unit::kCount:
      return "a whole number " + range;
    case Unit::kLogFormat:
      return "text or json";
    case Unit::kPath:
      return "a path";
    case Unit::kCpuOperations:
      return "auto, shm, tcp or mpi";
    case Unit::kGpuOperations:
      return "auto, nccl or host";
    case Unit::kHierarchy:
      return "auto, 0 or 1";
    case Unit::kValueAction:
      return "warn, error or 0";
    case Unit::kWireDtype:
      return "float32, bfloat16 or float16";
  }
  return range;
}

std::string DefaultText(const Setting& setting, const Config& defaults) {
  // See ChooseParts.
  if (setting.name == std::string("LOCK_SCHEDULE")) return "1 where all ranks share memory, else 0";
  if (setting.unit == Unit::kFlag) return defaults.*setting.as<bool>() ? "1" : "0";
  if (setting.unit == Unit::kLogFormat) return LogFormatName(defaults.*setting.as<bool>());
  if (setting.unit == Unit::kPath) return defaults.*setting.as<std::string>();
  if (setting.unit == Unit::kCpuOperations) {
    return NameOf(defaults.*setting.as<CpuOperations>());
  }
  if (setting.unit == Unit::kGpuOperations) {
    return NameOf(defaults.*setting.as<GpuOperations>());
  }
  if (setting.unit == Unit::kHierarchy) {
    return NameOf(defaults.*setting.as<Hierarchy>());
  }
  if (setting.unit == Unit::kValueAction) {
    return NameOf(defaults.*setting.as<ValueAction>());
  }
  if (setting.unit == Unit::kWireDtype) return DataTypeName(defaults.*setting.as<DataType>());
  const int64_t number = defaults.*setting.as<int64_t>();
  if (setting.unit == Unit::kLevel) return LevelName(number);
  if (setting.unit != Unit::kSeconds) return std::to_string(number);
  std::ostringstream text;
  text << static_cast<double>(number) / static_cast<double>(kSecond);
  return text.str();
}

}  // namespace

Result<Config> ParseConfig(const std::map<std::string, std::string>& values) {
  Config config;
  for (const auto& [name, text] : values) {
    const Setting* setting = FindSetting(name);
    if (setting == nullptr) {
      std::string known;
      for (const Setting* s : AllSettings()) {
        known += std::string(known.empty() ? "" : ", ") + s->name;
      }
      return InvalidArgument("TFRING_" + name + " is not a setting; known are " + known);
    }
    if (!Apply(*setting, text, &config)) {
      return InvalidArgument("TFRING_" + name + " is \"" + text + "\" and has to be " +
                             Allowed(*setting));
    }
    config.fixed.push_back(name);
  }
  if (config.heartbeat_interval > 0 && config.heartbeat_timeout < 3 * config.heartbeat_interval) {
    return InvalidArgument(
        "TFRING_HEARTBEAT_TIMEOUT_SECONDS has to be at least three times TFRING_HEARTBEAT_SECONDS, "
        "or healthy ranks would count as lost");
  }
  if (config.cpu_operations == CpuOperations::kShm && !config.shared_memory) {
    return InvalidArgument(
        "TFRING_CPU_OPERATIONS is shm and TFRING_SHARED_MEMORY is 0: one of the two has to go");
  }
  if (config.wire_dtype != DataType::kFloat32 && config.deterministic) {
    return InvalidArgument(std::string("TFRING_WIRE_DTYPE is ") + DataTypeName(config.wire_dtype) +
                           " and TFRING_DETERMINISTIC is 1: which values are rounded depends on "
                           "the size of the data, so one of the two has to go");
  }
  // As in Horovod: without the check nothing ends because of a stall, unless that is asked for.
  if (config.stall_warning == 0 && values.count("STALL_SHUTDOWN_TIME_SECONDS") == 0) {
    config.stall_shutdown = 0;
  }
  return config;
}

std::string DescribeConfig() {
  const Config defaults;
  std::string text;
  for (const Setting* setting : AllSettings()) {
    text += std::string("TFRING_") + setting->name + " (default " +
            DefaultText(*setting, defaults) + "): " + setting->meaning + "\n";
  }
  return text;
}

}  // namespace tfring
