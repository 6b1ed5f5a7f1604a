#include "ops/runtime/backend/algorithms/allreduce_choice.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "ops/runtime/backend/algorithms/member_order.h"

namespace tfring {
namespace {

AllreduceOption Flat(int size, int64_t bytes, const Config& config) {
  // With two ranks an exchange of everything sends no more than a ring, in one hop instead of two.
  const int64_t direct_max = size == 2 ? std::max(config.direct_max_bytes, config.tree_max_bytes)
                                       : config.direct_max_bytes;
  if (bytes <= direct_max && size <= kDirectMaxRanks) {
    return {DirectAllreduce, {}, "direct_allreduce"};
  }
  if (bytes <= config.tree_max_bytes) return {TreeAllreduce, {}, "tree_allreduce"};
  if (config.deterministic) return {TwoPhaseAllreduce, {}, "two_phase_allreduce"};
  return {RingAllreduce, {}, "ring_allreduce"};
}

HostLoad LoadOf(const AllreduceOption& option, const HostLayout& layout, int64_t bytes) {
  if (option.flat == nullptr) return LoadOf(layout, bytes, option.plan);
  if (option.flat == DirectAllreduce) return LoadOfDirect(layout, bytes);
  if (option.flat == TreeAllreduce) return LoadOfTree(layout, bytes);
  if (option.flat == TwoPhaseAllreduce) return LoadOfTwoPhases(layout, bytes);
  return LoadOfRing(layout, bytes);
}

// "30 us", "5.4 ms", "2.1 s".
std::string TimeText(double seconds) {
  const bool milliseconds = seconds >= 1e-3;
  const double scaled = seconds >= 1 ? seconds : seconds * (milliseconds ? 1e3 : 1e6);
  std::ostringstream text;
  const bool two_digits = scaled < 99.5;
  text.precision(two_digits ? 2 : 6);
  text << (two_digits ? scaled : std::round(scaled))
       << (seconds >= 1   ? " s"
           : milliseconds ? " ms"
                          : " us");
  return text.str();
}

std::string NetworkText(const Network& network) {
  std::ostringstream text;
  text << TimeText(network.latency) << " and " << network.bytes_per_second / 1e6 << " MB/s";
  return text.str();
}

std::string OptionText(const AllreduceOption& option) {
  std::string text = option.name;
  if (option.flat == nullptr && option.plan.workers == 1) text += " through one rank of each host";
  return text + " " + TimeText(option.seconds);
}

std::string LayoutText(const HostLayout& layout) {
  std::vector<size_t> ranks;
  for (int host = 0; host < layout.hosts(); ++host) {
    ranks.push_back(layout.PositionsOn(host).size());
  }
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
  const std::string number = *least == *most
                                 ? std::to_string(*most)
                                 : std::to_string(*least) + " to " + std::to_string(*most);
  return std::to_string(layout.hosts()) + " hosts with " + number +
         (*most == 1 ? " rank each" : " ranks each");
}

std::string HeadLine(const HostLayout& layout, const Config& config) {
  return "prices of allreduces over " + LayoutText(layout) + ": between hosts " +
         NetworkText(NetworkOf(config)) +
         " (TFRING_X_NETWORK_LATENCY_SECONDS, TFRING_X_NETWORK_BYTES_PER_SECOND), within a host " +
         NetworkText(NetworkWithin());
}

}  // namespace

std::vector<AllreduceOption> AllreduceOptions(int size, int64_t bytes, const Config& config,
                                              const HostLayout& layout) {
  std::vector<AllreduceOption> options = {Flat(size, bytes, config)};
  if (layout.hosts() <= 1) return options;
  const bool keeps_order = !config.deterministic || layout.KeepsCanonicalOrder();
  if (keeps_order && config.hierarchical_allreduce != Hierarchy::kNever) {
    for (const HierarchicalPlan& plan : HierarchicalPlans(layout)) {
      options.push_back({nullptr, plan, NameOf(plan.between)});
    }
  }
  const Network network = NetworkOf(config);
  for (AllreduceOption& option : options) {
    option.seconds = SecondsOf(LoadOf(option, layout, bytes), network);
  }
  const bool always = config.hierarchical_allreduce == Hierarchy::kAlways;
  // Stable: among equal costs the flat algorithm wins, then the simpler hierarchical one.
  std::stable_sort(options.begin(), options.end(),
                   [always](const AllreduceOption& one, const AllreduceOption& other) {
                     const bool one_flat = one.flat != nullptr;
                     if (always && one_flat != (other.flat != nullptr)) return !one_flat;
                     return one.seconds < other.seconds;
                   });
  return options;
}

Schedule ScheduleOf(const AllreduceOption& option, const ReduceShape& shape,
                    const HostLayout& layout) {
  if (option.flat == nullptr) return HierarchicalAllreduce(shape, layout, option.plan);
  if (option.flat != RingAllreduce || layout.hosts() <= 1) return option.flat(shape);
  const MemberOrder order = MemberOrder::ByHost(layout);
  ReduceShape placed = shape;
  placed.self = order.PlaceOf(shape.self);
  Schedule schedule = RingAllreduce(placed);
  order.Apply({}, false, false, &schedule);
  return schedule;
}

std::vector<std::string> AllreducePrices(const std::vector<std::string>& hosts,
                                         const Config& config) {
  const HostLayout layout(NumberHosts(hosts));
  if (layout.hosts() < 2) return {};
  std::vector<std::string> lines = {HeadLine(layout, config)};
  const int size = static_cast<int>(layout.ByHost().size());
  const std::pair<int64_t, const char*> sizes[] = {{4, "4 B"},
                                                   {64 << 10, "64 KiB"},
                                                   {1 << 20, "1 MiB"},
                                                   {16 << 20, "16 MiB"},
                                                   {64 << 20, "64 MiB"}};
  for (const auto& [bytes, text] : sizes) {
    const auto options = AllreduceOptions(size, bytes, config, layout);
    std::string line = std::string(text) + ": " + OptionText(options.front());
    for (size_t i = 1; i < options.size(); ++i) {
      line += (i == 1 ? "; not " : ", ") + OptionText(options[i]);
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace tfring
