#include "ops/runtime/backend/price_report.h"

#include <sstream>

#include "ops/runtime/backend/algorithms/allreduce_choice.h"
#include "ops/runtime/backend/algorithms/host_layout.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

// A setting that is this many times wrong may lead to another algorithm.
constexpr int kFarOff = 4;

double Microseconds(Duration duration) { return static_cast<double>(duration) * 1e6 / kSecond; }

}  // namespace

std::vector<std::string> DescribePrices(const std::vector<std::string>& hosts,
                                        const Config& config) {
  const HostLayout layout(NumberHosts(hosts));
  if (layout.hosts() < 2) return {};
  return AllreducePrices(layout, config);
}

MeasuredLatency DescribeLatency(Rank self, const std::vector<std::string>& hosts,
                                const Config& config, const DataTransport& transport) {
  Duration longest = 0;
  Rank farthest = kNoRank;
  for (Rank peer = 0; peer < static_cast<Rank>(hosts.size()); ++peer) {
    if (hosts[peer] == hosts[self] || !transport.Connected(peer)) continue;
    if (transport.RoundTrip(peer) <= longest) continue;
    longest = transport.RoundTrip(peer);
    farthest = peer;
  }
  if (farthest == kNoRank) return {};
  const Duration one_way = longest / 2;
  const Duration set = config.network_latency;
  std::ostringstream text;
  text << "TCP has measured " << Microseconds(one_way) << " us to " << RankName(farthest, hosts)
       << ", which is the farthest from rank " << self
       << ", and TFRING_X_NETWORK_LATENCY_SECONDS is " << Microseconds(set) << " us";
  const bool far_off = one_way > set * kFarOff || one_way * kFarOff < set;
  if (far_off) {
    text << ": set it to " << Microseconds(one_way) / 1e6 << ", so that the cheapest allreduces "
         << "are chosen (TFRING_LOG_LEVEL=debug shows which are)";
  }
  return {text.str(), far_off};
}

void LogPrices(Rank self, const std::vector<std::string>& hosts, const Config& config,
               const DataTransport& transport) {
  const HostLayout layout(NumberHosts(hosts));
  if (layout.hosts() < 2) return;
  const MeasuredLatency measured = DescribeLatency(self, hosts, config, transport);
  if (!measured.text.empty()) {
    Log(measured.far_off ? LogLevel::kInfo : LogLevel::kDebug, measured.text);
  }
  if (!LogEnabled(LogLevel::kDebug)) return;
  for (const std::string& line : AllreducePrices(layout, config)) Log(LogLevel::kDebug, line);
}

}  // namespace tfring
