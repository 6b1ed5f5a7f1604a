#include "ops/runtime/process/factory.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ops/runtime/backend/cpu_backend.h"
#include "ops/runtime/backend/routing_backend.h"
#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/process/device_library.h"
#include "ops/runtime/recorder/recorder.h"
#include "ops/runtime/transport/mpi_data.h"
#include "ops/runtime/transport/mpi_library.h"
#include "ops/runtime/transport/shm_data.h"
#include "ops/runtime/transport/tcp_control.h"
#include "ops/runtime/transport/tcp_data.h"

namespace tfring {
namespace {

Status CheckTopology(const Topology& t, const std::vector<std::string>& hosts) {
  if (t.size < 1 || t.rank < 0 || t.rank >= t.size) {
    return InvalidArgument("rank " + std::to_string(t.rank) + " of " + std::to_string(t.size) +
                           " ranks makes no sense");
  }
  if (!hosts.empty() && hosts.size() != static_cast<size_t>(t.size)) {
    return InvalidArgument("init got " + std::to_string(hosts.size()) + " host names for " +
                           std::to_string(t.size) + " ranks");
  }
  return OkStatus();
}

bool NeedsControl(const Topology& t, Rank peer) { return t.rank == 0 || peer == 0; }

// Often enough for a cut path to show before the stall limit. The kernel's own unit is the second.
Duration ProbeInterval(const Config& config) {
  if (config.stall_shutdown <= 0) return 5 * kSecond;
  return std::clamp(config.stall_shutdown / 6, kSecond, 5 * kSecond);
}

// The bootstrap decides which ranks are connected at first, and the others connect when they need
// to; a ring there is always.
bool NeedsData(const Topology& t, Rank peer) {
  const int distance = (peer - t.rank + t.size) % t.size;
  return distance == 1 || distance == t.size - 1;
}

Status CheckPeers(const Topology& t, const std::map<Rank, UniqueFd>& sockets, const char* kind,
                  bool (*needs)(const Topology&, Rank)) {
  const std::string who = "rank " + std::to_string(t.rank) + ": ";
  const std::string what = std::string(kind) + " connection to rank ";
  for (const auto& [peer, socket] : sockets) {
    if (peer < 0 || peer >= t.size || peer == t.rank) {
      return InvalidArgument(who + "a " + what + std::to_string(peer) + " makes no sense");
    }
  }
  for (Rank peer = 0; peer < t.size; ++peer) {
    if (peer != t.rank && needs(t, peer) && sockets.count(peer) == 0) {
      return InvalidArgument(who + "the " + what + std::to_string(peer) + " is missing");
    }
  }
  return OkStatus();
}

Result<std::unique_ptr<ControlTransport>> MakeControl(Connections* connections) {
  std::vector<TcpControlTransport::Peer> peers;
  for (auto& [rank, socket] : connections->control) {
    auto pid = connections->local_pids.find(rank);
    auto [send_key, receive_key] = connections->control_keys[rank];
    peers.push_back({rank, std::move(socket),
                     pid == connections->local_pids.end() ? 0 : pid->second, std::move(send_key),
                     std::move(receive_key)});
  }
  auto made = TcpControlTransport::Create(std::move(peers), connections->local_pids);
  if (!made.ok()) return made.status();
  return std::unique_ptr<ControlTransport>(std::move(*made));
}

ShmUse UseOfSharedMemory(const Config& config) {
  if (config.cpu_operations == CpuOperations::kShm) return ShmUse::kRequired;
  const bool wanted = config.shared_memory && config.cpu_operations != CpuOperations::kTcp;
  return wanted ? ShmUse::kWherePossible : ShmUse::kNever;
}

Result<std::unique_ptr<DataTransport>> MakeMpi(const Topology& topology, const MpiUse& use) {
  Result<const MpiFunctions*> mpi = FailedPrecondition("init was given no MPI");
  if (!use.plugin.empty()) mpi = LoadMpi(use);
  if (!mpi.ok()) {
    return FailedPrecondition("TFRING_CPU_OPERATIONS is mpi, and rank " +
                              std::to_string(topology.rank) +
                              " cannot use MPI: " + mpi.status().message());
  }
  auto made = MpiDataTransport::Create(*mpi, use.communicator, topology.rank, topology.size);
  if (!made.ok()) return made.status();
  return std::unique_ptr<DataTransport>(std::move(*made));
}

Result<std::unique_ptr<DataTransport>> MakeData(const Topology& topology, Connections* connections,
                                                const Config& config, Duration limit) {
  std::vector<ShmPeer> on_this_host;
  for (const auto& [rank, socket] : connections->data) {
    if (connections->local_pids.count(rank) != 0) on_this_host.push_back({rank, socket.get()});
  }
  const TimePoint deadline = MonotonicNow() + limit;
  const Rank self = config.arena ? topology.rank : kNoRank;  // arenas lie in a HostMemory
  if (config.cpu_operations == CpuOperations::kMpi && topology.size > 1) {
    Result<std::unique_ptr<DataTransport>> mpi = MakeMpi(topology, connections->mpi);
    if (!mpi.ok()) return mpi.status();
    // The sockets are for the agreement alone.
    return ShmDataTransport::Connect(UseOfSharedMemory(config), on_this_host, std::move(*mpi),
                                     deadline, self);
  }
  std::unique_ptr<PeerConnector> connector;
  if (connections->others.listener.valid()) {
    Result<std::unique_ptr<PeerConnector>> made =
        PeerConnector::Create(std::move(connections->others));
    if (!made.ok()) return made.status();
    connector = std::move(*made);
  }
  auto made = TcpDataTransport::Create(std::move(connections->data), ProbeInterval(config),
                                       std::move(connector));
  if (!made.ok()) return made.status();
  return ShmDataTransport::Connect(UseOfSharedMemory(config), on_this_host, std::move(*made),
                                   deadline, self);
}

// The parts for tensors in device memory, around those for CPU memory.
void AddDevices(const Config& config, Rank self, const std::vector<std::string>& hosts,
                RankRuntimeParts* parts) {
  const std::shared_ptr<Devices> devices =
      LazyDevices({self, hosts.empty() ? "" : hosts[self], config});
  parts->wrap_stream = [devices](void* stream) { return devices->Wrap(stream); };
  parts->make_backend = [make_cpu = std::move(parts->make_backend), devices](CompletionSink sink,
                                                                             ThreadPool* pool) {
    const auto with_pool = [&](CompletionSink of_cpu) { return make_cpu(std::move(of_cpu), pool); };
    const auto make_staging = [devices](DeviceStaging::CpuQueue cpu, CompletionSink of_staging) {
      return devices->MakeStaging(std::move(cpu), std::move(of_staging));
    };
    const auto make_device = [devices](CpuOrder* order, CompletionSink of_device) {
      return devices->MakeBackend(order, std::move(of_device));
    };
    return std::make_unique<RoutingBackend>(with_pool, make_staging, make_device, std::move(sink));
  };
}

// `all`: all ranks share the arenas of one host. A header there also says whether a rank enters a
// batch, so locks are on. Elsewhere each batch needs a small collective first, so locks are off.
// LOCK_SCHEDULE overrides both.
void UseArenas(bool all, Config* config) {
  const std::vector<std::string>& set = config->fixed;
  if (std::count(set.begin(), set.end(), "LOCK_SCHEDULE") == 0) config->lock_schedule = all;
}

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

Connections TakeConnections(InitOptions* options) {
  Connections taken;
  for (auto [rank, fd] : options->control_fds) taken.control.emplace(rank, UniqueFd(fd));
  for (auto [rank, fd] : options->data_fds) taken.data.emplace(rank, UniqueFd(fd));
  taken.local_pids = std::move(options->local_pids);
  taken.control_keys = std::move(options->control_keys);
  taken.others.self = options->topology.rank;
  taken.others.listener = UniqueFd(std::exchange(options->data_listener, -1));
  taken.others.endpoints = std::move(options->data_endpoints);
  taken.others.key = std::move(options->data_key);
  taken.mpi = {options->mpi_plugin, options->mpi_module, options->mpi_communicator};
  options->control_fds.clear();
  options->data_fds.clear();
  return taken;
}

Result<RankRuntimeParts> ChooseParts(const Topology& topology, std::vector<std::string> hosts,
                                     Connections connections, const Config& config,
                                     Duration limit) {
  TFRING_RETURN_IF_ERROR(CheckTopology(topology, hosts));
  TFRING_RETURN_IF_ERROR(CheckPeers(topology, connections.control, "control", NeedsControl));
  TFRING_RETURN_IF_ERROR(CheckPeers(topology, connections.data, "data", NeedsData));
  RankRuntimeParts parts;
  parts.engine.rank = topology.rank;
  parts.engine.size = topology.size;
  parts.engine.config = config;
  parts.engine.hosts = hosts;
  parts.engine.start_timeout = limit;
  Result<std::unique_ptr<ControlTransport>> control = MakeControl(&connections);
  if (!control.ok()) return control.status();
  parts.control = std::move(*control);
  Result<std::unique_ptr<DataTransport>> data = MakeData(topology, &connections, config, limit);
  if (!data.ok()) return data.status();
  const bool one_host = !hosts.empty() && std::count(hosts.begin(), hosts.end(), hosts[0]) ==
                                              static_cast<std::ptrdiff_t>(hosts.size());
  if (topology.size > 1) {
    UseArenas(config.arena && one_host && (*data)->host_memory() != nullptr, &parts.engine.config);
  }
  // std::function has to be copyable and the transport is not; it is moved out in the only call.
  auto holder = std::make_shared<std::unique_ptr<DataTransport>>(std::move(*data));
  parts.make_backend = [self = topology.rank, config, holder, hosts](
                           CompletionSink sink,
                           ThreadPool* pool) -> std::unique_ptr<CollectiveBackend> {
    return std::make_unique<CpuBackend>(self, config, std::move(*holder), std::move(sink), hosts,
                                        pool);
  };
  AddDevices(config, topology.rank, hosts, &parts);
  return parts;
}

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
