#include "ops/runtime/backend/price_report.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/test.h"

namespace tfring::testing::price_report_test {
namespace {

// Connected with all ranks but those that it has no round trip of.
class MeasuredTransport final : public DataTransport {
 public:
  explicit MeasuredTransport(std::vector<Duration> round_trips)
      : round_trips_(std::move(round_trips)) {}

  bool Connected(Rank peer) const override { return round_trips_[peer] >= 0; }
  Duration RoundTrip(Rank peer) const override { return round_trips_[peer]; }
  Result<int64_t> TrySend(Rank, const struct iovec*, int) override { return int64_t{0}; }
  Result<int64_t> TryRecv(Rank, const struct iovec*, int) override { return int64_t{0}; }
  std::optional<BrokenStream> Wait(const WaitSet&) override { return std::nullopt; }
  void Interrupt() override {}
  int64_t bytes_sent() const override { return 0; }
  void Close(TimePoint) override {}

 private:
  const std::vector<Duration> round_trips_;  // by rank
};

constexpr Duration kMicrosecond = kMillisecond / 1000;

TEST(PricesAreToldInWords) {
  Config config;
  config.network_latency = 2 * kMillisecond;
  const auto lines = DescribePrices({"a", "a", "b", "b"}, config);
  ASSERT_EQ(lines.size(), size_t{6});
  EXPECT_CONTAINS(lines[0], "2 hosts with 2 ranks each: between hosts 2 ms and 1250 MB/s");
  EXPECT_CONTAINS(lines[1], "4 B: hierarchical_exchange through one rank of each host 2 ms; not ");
  EXPECT_CONTAINS(lines[5], "64 MiB: hierarchical_exchange ");
  EXPECT_CONTAINS(lines[5], "ring_allreduce ");
  config.network_latency = 99'900;
  const auto rounded = DescribePrices({"a", "b"}, config);
  EXPECT_CONTAINS(rounded[0], "between hosts 100 us and");
  EXPECT_TRUE(DescribePrices({"a", "a"}, config).empty());
}

TEST(ASettingFarFromWhatWasMeasuredIsNamed) {
  const std::vector<std::string> hosts = {"a", "a", "b", "c", "d"};
  const Config config;  // 30 us
  const auto described = [&](Duration same_host, Duration b, Duration c) {
    const MeasuredTransport transport({0, same_host, b, c, -1});
    return DescribeLatency(0, hosts, config, transport);
  };
  const MeasuredLatency far = described(kSecond, kMicrosecond, 3 * kMillisecond);
  EXPECT_TRUE(far.far_off);
  EXPECT_CONTAINS(far.text, "1500 us to rank 3 (host c), which is the farthest from rank 0");
  EXPECT_CONTAINS(far.text, "is 30 us: set it to 0.0015,");
  const MeasuredLatency near = described(0, 80 * kMicrosecond, 20 * kMicrosecond);
  EXPECT_TRUE(!near.far_off);
  EXPECT_CONTAINS(near.text, "40 us to rank 2 (host b)");
  EXPECT_TRUE(described(0, 0, 10 * kMicrosecond).far_off);
  EXPECT_EQ(described(kSecond, 0, 0).text, "");
}

}  // namespace
}  // namespace tfring::testing::price_report_test
