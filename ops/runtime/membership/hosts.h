#ifndef TFRING_OPS_RUNTIME_MEMBERSHIP_HOSTS_H_
#define TFRING_OPS_RUNTIME_MEMBERSHIP_HOSTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/types.h"

namespace tfring::membership {

struct HostSlots {
  std::string host;
  int32_t slots = 0;
};

// A slot of a host. One worker runs there.
using Place = std::pair<std::string, int32_t>;

// When a host with failed workers gets no new workers.
struct HostPolicy {
  // Horovod's rule: the first failure bars the host for the rest of the job. Otherwise a host with
  // `failures` in `window` cools down for `cool_first`, the next time for twice as long, up to
  // `cool_most`. Failures meanwhile do not count, and failures within `together` count as one: the
  // loss of an agent ends all its workers.
  bool first_failure_bars = false;
  // Whether the other workers of a cooling host have to leave. Workers of a barred host always do.
  bool cooling_empties = false;
  int failures = 3;
  Duration window = 600 * kSecond;
  Duration together = kSecond;
  Duration cool_first = 10 * kSecond;
  Duration cool_most = 3600 * kSecond;
};

// The hosts of a job, in the order in which they were found, and which of them are usable. Used by
// one thread; lives as long as the job.
class Hosts {
 public:
  explicit Hosts(HostPolicy policy) : policy_(policy) {}

  // Sets all present hosts. A host that comes back keeps its failures and its cooling time.
  void Set(std::vector<HostSlots> hosts) { hosts_ = std::move(hosts); }
  bool Has(const Place& place) const;
  bool empty() const { return hosts_.empty(); }

  // Bars the host or cools it down without waiting for more failures.
  void Cool(TimePoint now, const std::string& host);
  // A worker on the host failed.
  void OnFailure(TimePoint now, const std::string& host);
  // Returns whether the host is neither barred nor cooling down.
  bool Usable(TimePoint now, const std::string& host) const;
  bool Barred(const std::string& host) const;
  // Returns whether there are hosts and all are barred.
  bool AllBarred() const;

  // Returns the first slot of a usable host that is not in `taken`.
  std::optional<Place> Free(TimePoint now, const std::set<Place>& taken) const;

 private:
  struct Heat {
    std::vector<TimePoint> failures;  // in the window
    int coolings = 0;
    TimePoint until = 0;  // kNever: barred
  };

  const HostPolicy policy_;
  std::vector<HostSlots> hosts_;
  std::map<std::string, Heat> heat_;  // hosts with failed workers
};

}  // namespace tfring::membership

#endif  // TFRING_OPS_RUNTIME_MEMBERSHIP_HOSTS_H_
