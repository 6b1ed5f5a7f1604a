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
// other; none where there are fewer than two hosts. InvalidArgument if a setting makes no sense.
TFRING_EXPORT Result<std::vector<std::string>> DescribePrices(
    const std::vector<std::string>& hosts, const std::map<std::string, std::string>& settings);

// The same for the log, and how long a message takes from this rank to other hosts as the
// transport has measured it: the setting for that is not measured.
std::vector<std::string> PricesOfJob(Rank self, const std::vector<std::string>& hosts,
                                     const Config& config, const DataTransport& transport);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_PRICE_REPORT_H_
