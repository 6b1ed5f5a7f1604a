#include "ops/runtime/membership/hosts.h"

#include <algorithm>

namespace tfring::membership {

bool Hosts::Has(const Place& place) const {
  return std::any_of(hosts_.begin(), hosts_.end(), [&](const HostSlots& host) {
    return host.host == place.first && place.second < host.slots;
  });
}

void Hosts::OnFailure(TimePoint now, const std::string& host) {
  if (!Usable(now, host)) return;
  std::vector<TimePoint>& failures = heat_[host].failures;
  failures.erase(std::remove_if(failures.begin(), failures.end(),
                                [&](TimePoint when) { return now - when > policy_.window; }),
                 failures.end());
  if (!failures.empty() && now - failures.back() < policy_.together) return;
  failures.push_back(now);
  const int needed = policy_.first_failure_bars ? 1 : policy_.failures;
  if (failures.size() >= static_cast<size_t>(needed)) Cool(now, host);
}

void Hosts::Cool(TimePoint now, const std::string& host) {
  Heat& heat = heat_[host];
  if (policy_.first_failure_bars) {
    heat.until = kNever;
    return;
  }
  Duration cool = policy_.cool_first;
  for (int i = 0; i < heat.coolings && cool < policy_.cool_most; ++i) cool *= 2;
  ++heat.coolings;
  heat.until = std::max(heat.until, After(now, std::min(cool, policy_.cool_most)));
}

bool Hosts::Usable(TimePoint now, const std::string& host) const {
  const auto heat = heat_.find(host);
  return heat == heat_.end() || now >= heat->second.until;
}

bool Hosts::Barred(const std::string& host) const {
  const auto heat = heat_.find(host);
  return heat != heat_.end() && heat->second.until == kNever;
}

bool Hosts::AllBarred() const {
  return !hosts_.empty() && std::all_of(hosts_.begin(), hosts_.end(),
                                        [&](const HostSlots& host) { return Barred(host.host); });
}

std::optional<Place> Hosts::Free(TimePoint now, const std::set<Place>& taken) const {
  for (const HostSlots& host : hosts_) {
    if (!Usable(now, host.host)) continue;
    for (int32_t slot = 0; slot < host.slots; ++slot) {
      if (taken.count({host.host, slot}) == 0) return Place{host.host, slot};
    }
  }
  return std::nullopt;
}

}  // namespace tfring::membership
