#include "ops/runtime/process/start_runtime.h"

#include <string>
#include <utility>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/recorder/recorder.h"

namespace tfring {
namespace {

// The name of this rank's host; "" where the caller has not said it.
std::string HostOf(const InitOptions& options) {
  const auto rank = static_cast<size_t>(options.topology.rank);
  return rank < options.hosts.size() ? options.hosts[rank] : "";
}

// A record in memory is better than none, and no reason not to train.
std::unique_ptr<Recorder> MakeRecorder(const InitOptions& options) {
  const RecordOptions& wanted = options.record;
  const Topology& topology = options.topology;
  const Config& config = options.config;
  if (!wanted.enabled) return nullptr;
  RecordIdentity identity{wanted.path,
                          wanted.job,
                          HostOf(options),
                          wanted.boot,
                          topology.rank,
                          topology.local_rank,
                          topology.size,
                          config.stall_shutdown,
                          config.heartbeat_interval > 0 ? config.heartbeat_timeout : 0};
  Result<std::unique_ptr<Recorder>> made = Recorder::Create(identity);
  if (!made.ok() && !identity.path.empty()) {
    TFRING_LOG(kWarning) << made.status().message()
                         << ": what this rank does can be seen while it runs only; set "
                            "TFRING_RECORD_DIR to a folder with room";
    identity.path.clear();
    made = Recorder::Create(identity);
  }
  return made.ok() ? std::move(*made) : nullptr;
}

}  // namespace

Result<std::shared_ptr<RankRuntime>> StartRuntime(InitOptions* options, Connections connections) {
  ConfigureLog(options->config);
  SetLogIdentity({options->topology.rank, options->topology.size, HostOf(*options)});
  const Duration limit = static_cast<Duration>(options->start_timeout_seconds * kSecond);
  std::unique_ptr<Recorder> recorder;
  if (options->hosts.empty() ||
      options->hosts.size() == static_cast<size_t>(options->topology.size)) {
    recorder = MakeRecorder(*options);
  }
  Result<RankRuntimeParts> parts = ChooseParts(options->topology, std::move(options->hosts),
                                               std::move(connections), options->config, limit);
  if (!parts.ok()) return parts.status();
  parts->recorder = std::move(recorder);
  parts->keep_record = options->record.keep;
  parts->generation = options->generation;
  parts->engine.nonce = options->nonce;
  parts->engine.last_process_set = options->last_process_set;
  Result<std::unique_ptr<RankRuntime>> runtime = RankRuntime::Start(std::move(*parts));
  if (!runtime.ok()) return runtime.status();
  return std::shared_ptr<RankRuntime>(std::move(*runtime));
}

}  // namespace tfring
