#ifndef TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HOST_LAYOUT_H_
#define TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HOST_LAYOUT_H_

#include <string>
#include <vector>

#include "ops/runtime/base/types.h"

namespace tfring {

// Which members of a process set are on which host. A value type. All members have the same, since
// it comes from names that all ranks have exchanged; what a rank sees of the others by itself (with
// whom it shares memory, say) plays no part.
class HostLayout {
 public:
  // One host.
  HostLayout() = default;
  // `host_of`, by position, tells hosts apart.
  explicit HostLayout(const std::vector<int>& host_of);

  // Hosts are numbered in the order of their first positions. No host: nothing is known, and all
  // members count as being on one.
  int hosts() const { return static_cast<int>(positions_.size()); }
  // In ascending order; never empty.
  const std::vector<int>& PositionsOn(int host) const { return positions_[host]; }
  int HostOf(int position) const { return host_of_[position]; }

  // True if sums made within each host first, in canonical order (see canonical_sum.h), and then in
  // the same order over the hosts are the canonical sums of all: on every host but the last there
  // are the same number of positions, a power of two, that follow one another, and on the last one
  // not more.
  bool KeepsCanonicalOrder() const;

  // All positions, host by host.
  std::vector<int> ByHost() const;

 private:
  std::vector<std::vector<int>> positions_;  // by host
  std::vector<int> host_of_;                 // by position
};

// A number for each rank, which it shares with those of the same host name. Empty names are hosts
// of their own.
std::vector<int> NumberHosts(const std::vector<std::string>& names);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ALGORITHMS_HOST_LAYOUT_H_
