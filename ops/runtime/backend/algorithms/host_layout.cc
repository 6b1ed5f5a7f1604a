#include "ops/runtime/backend/algorithms/host_layout.h"

#include <map>

namespace tfring {

HostLayout::HostLayout(const std::vector<int>& host_of) {
  std::map<int, int> numbers;
  for (size_t position = 0; position < host_of.size(); ++position) {
    const auto [host, first] = numbers.emplace(host_of[position], hosts());
    if (first) positions_.emplace_back();
    positions_[host->second].push_back(static_cast<int>(position));
    host_of_.push_back(host->second);
  }
}

bool HostLayout::KeepsCanonicalOrder() const {
  if (hosts() == 0) return true;
  const size_t most = positions_[0].size();
  int next = 0;
  for (int host = 0; host < hosts(); ++host) {
    const std::vector<int>& here = positions_[host];
    const bool last = host + 1 == hosts();
    if (last ? here.size() > most : here.size() != most) return false;
    for (int position : here) {
      if (position != next++) return false;
    }
  }
  return hosts() == 1 || (most & (most - 1)) == 0;
}

std::vector<int> HostLayout::ByHost() const {
  std::vector<int> all;
  for (const std::vector<int>& here : positions_) all.insert(all.end(), here.begin(), here.end());
  return all;
}

std::vector<int> NumberHosts(const std::vector<std::string>& names) {
  std::map<std::string, int> numbers;
  std::vector<int> by_rank;
  for (const std::string& name : names) {
    const int next = static_cast<int>(by_rank.size());
    by_rank.push_back(name.empty() ? next : numbers.emplace(name, next).first->second);
  }
  return by_rank;
}

}  // namespace tfring
