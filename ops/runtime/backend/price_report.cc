#include "ops/runtime/backend/price_report.h"

#include <algorithm>
#include <sstream>

#include "ops/runtime/backend/algorithms/allreduce_choice.h"
#include "ops/runtime/backend/algorithms/host_layout.h"
#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

// A setting that is this many times wrong may lead to another algorithm.
constexpr int kFarOff = 4;

double Microseconds(Duration duration) { return static_cast<double>(duration) * 1e6 / kSecond; }

// Half of the longest round trip to another host; empty if nothing was measured.
std::string MeasuredLine(Rank self, const std::vector<std::string>& hosts, const Config& config,
                         const DataTransport& transport) {
  Duration longest = 0;
  Rank farthest = kNoRank;
  for (Rank peer = 0; peer < static_cast<Rank>(hosts.size()); ++peer) {
    if (hosts[peer] == hosts[self] || !transport.Connected(peer)) continue;
    if (transport.RoundTrip(peer) <= longest) continue;
    longest = transport.RoundTrip(peer);
    farthest = peer;
  }
  if (farthest == kNoRank) return "";
  const Duration one_way = longest / 2;
  std::ostringstream text;
  text << "TCP has measured " << Microseconds(one_way) << " us to " << RankName(farthest, hosts)
       << ", which is the farthest from rank " << self << "; the price has "
       << Microseconds(config.network_latency) << " us";
  if (one_way > config.network_latency * kFarOff || one_way * kFarOff < config.network_latency) {
    text << ": set TFRING_NETWORK_LATENCY_SECONDS=" << Microseconds(one_way) / 1e6;
  }
  return text.str();
}

}  // namespace

Result<std::vector<std::string>> DescribePrices(
    const std::vector<std::string>& hosts, const std::map<std::string, std::string>& settings) {
  const Result<Config> config = ParseConfig(settings);
  if (!config.ok()) return config.status();
  const HostLayout layout(NumberHosts(hosts));
  if (layout.hosts() < 2) return std::vector<std::string>();
  return AllreducePrices(layout, *config);
}

std::vector<std::string> PricesOfJob(Rank self, const std::vector<std::string>& hosts,
                                     const Config& config, const DataTransport& transport) {
  const HostLayout layout(NumberHosts(hosts));
  if (layout.hosts() < 2) return {};
  std::vector<std::string> lines = AllreducePrices(layout, config);
  const std::string measured = MeasuredLine(self, hosts, config, transport);
  if (!measured.empty()) lines.insert(lines.begin() + 1, measured);
  return lines;
}

}  // namespace tfring
