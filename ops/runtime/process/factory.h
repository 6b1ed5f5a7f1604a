#ifndef TFRING_OPS_RUNTIME_PROCESS_FACTORY_H_
#define TFRING_OPS_RUNTIME_PROCESS_FACTORY_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/process/rank_runtime.h"
#include "ops/runtime/process/rank_runtime_parts.h"
#include "ops/runtime/transport/mpi_library.h"
#include "ops/runtime/transport/peer_connector.h"
#include "ops/runtime/transport/unique_fd.h"

namespace tfring {

// The ways to the other ranks that InitOptions names. Closes the descriptors.
struct Connections {
  std::map<Rank, UniqueFd> control;
  std::map<Rank, UniqueFd> data;
  PeerAddresses others;  // without a listener if all are connected
  std::map<Rank, int64_t> local_pids;
  std::map<Rank, std::pair<std::string, std::string>> control_keys;
  MpiUse mpi;
};

// Takes over the descriptors, so that they are closed whatever happens next.
Connections TakeConnections(InitOptions* options);

// Chooses transports and backend: the only place that knows all implementations. A job of one rank
// gets the local backend, all others the CPU backend, over shared memory within a host and sockets
// or MPI between hosts, and around it what stages tensors in device memory. InvalidArgument says
// which connection is missing or superfluous; Unavailable names a peer that was lost meanwhile or
// does not answer within `limit`.
Result<RankRuntimeParts> ChooseParts(const Topology& topology, std::vector<std::string> hosts,
                                     Connections connections, const Config& config, Duration limit);

// Starts the runtime of a new generation with the log, record, transports and backend that the
// settings ask for. Uses up `options`. InvalidArgument for settings or connections that make no
// sense; Unavailable names a peer that was lost meanwhile.
Result<std::shared_ptr<RankRuntime>> StartRuntime(InitOptions* options, Connections connections);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_FACTORY_H_
