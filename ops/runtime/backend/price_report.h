#ifndef TFRING_OPS_RUNTIME_BACKEND_PRICE_REPORT_H_
#define TFRING_OPS_RUNTIME_BACKEND_PRICE_REPORT_H_

#include <map>
#include <string>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/data_transport.h"

namespace tfring {

// The lines of AllreducePrices for ranks on these hosts, by rank, which are all connected with each
// other; none where there are fewer than two hosts.
TFRING_EXPORT std::vector<std::string> DescribePrices(const std::vector<std::string>& hosts,
                                                      const Config& config);

// The measured time of a message from this rank to the farthest rank of another host, beside the
// setting. Empty if nothing was measured.
struct MeasuredLatency {
  std::string text;
  bool far_off = false;  // the setting is; the text says what to do
};
MeasuredLatency DescribeLatency(Rank self, const std::vector<std::string>& hosts,
                                const Config& config, const DataTransport& transport);

// Logs both for a job of several hosts at level debug; a setting that is far off at level info.
void LogPrices(Rank self, const std::vector<std::string>& hosts, const Config& config,
               const DataTransport& transport);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_PRICE_REPORT_H_
