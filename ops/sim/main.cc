#include <getopt.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "ops/sim/cluster.h"

// tfring_sim: runs many simulated jobs, one per seed; see Usage().
namespace tfring::sim {
namespace {

struct Arguments {
  SimOptions options;
  int64_t seeds = 1;
  bool verbose = false;
};

constexpr char kUsage[] =
    "usage: tfring_sim [--ranks=3] [--seed=1] [--seeds=1] [--verbose]\n"
    "                  [--workload=triangle|subsets|random|withdrawals|locked|steady]\n"
    "                  [--fault=none|death|hang|goodbye|resize]\n"
    "Runs the engines of all ranks in one process on a virtual clock and a random network, and\n"
    "checks that all ranks run the same plans in one order, that every call ends exactly once, "
    "and\n"
    "that nothing deadlocks. A seed repeats a run exactly.\n";

bool ParseFault(const std::string& name, Fault* fault) {
  for (Fault each : {Fault::kNone, Fault::kDeath, Fault::kHang, Fault::kGoodbye, Fault::kResize}) {
    if (name != FaultName(each)) continue;
    *fault = each;
    return true;
  }
  return false;
}

std::string UnlocksText(const SimReport& total) {
  std::string text;
  for (int cause = 1; cause < kUnlockCauses; ++cause) {
    text += " " + std::to_string(total.unlocks[static_cast<size_t>(cause)]) + " " +
            UnlockCauseName(static_cast<UnlockCause>(cause));
  }
  return text;
}

bool ParseNumber(const char* text, int64_t low, int64_t high, int64_t* value) {
  char* end = nullptr;
  *value = std::strtoll(text, &end, 10);
  return end != text && *end == '\0' && *value >= low && *value <= high;
}

bool Parse(int argc, char** argv, Arguments* arguments) {
  static const option kOptions[] = {{"ranks", required_argument, nullptr, 'r'},
                                    {"seed", required_argument, nullptr, 's'},
                                    {"seeds", required_argument, nullptr, 'n'},
                                    {"workload", required_argument, nullptr, 'w'},
                                    {"fault", required_argument, nullptr, 'f'},
                                    {"verbose", no_argument, nullptr, 'v'},
                                    {nullptr, 0, nullptr, 0}};
  SimOptions& options = arguments->options;
  int64_t number = 0;
  bool good = true;
  int letter = 0;
  while (good && (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1) {
    if (letter == 'r') {
      good = ParseNumber(optarg, 1, 100000, &number);
      options.ranks = static_cast<int>(number);
    } else if (letter == 's') {
      good = ParseNumber(optarg, 0, INT64_MAX / 2, &number);
      options.seed = static_cast<uint64_t>(number);
    } else if (letter == 'n') {
      good = ParseNumber(optarg, 1, INT64_MAX / 2, &arguments->seeds);
    } else if (letter == 'w') {
      options.workload = optarg;
    } else if (letter == 'f') {
      good = ParseFault(optarg, &options.fault);
    } else if (letter == 'v') {
      arguments->verbose = true;
    } else {
      good = false;
    }
  }
  return good && optind == argc;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) {
    std::cerr << kUsage;
    return 2;
  }
  SimOptions options = arguments.options;
  SimReport total;
  int64_t faulted = 0;
  int64_t in_lock = 0;
  int64_t failed = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < arguments.seeds; ++i, ++options.seed) {
    const SimReport report = Cluster(options).Run();
    total.plans += report.plans;
    total.results += report.results;
    total.aborted += report.aborted;
    total.launched += report.launched;
    total.locks += report.locks;
    for (size_t cause = 0; cause < kUnlockCauses; ++cause) {
      total.unlocks[cause] += report.unlocks[cause];
    }
    total.locked += report.locked;
    total.recalled += report.recalled;
    total.early += report.early;
    total.broken_groups += report.broken_groups;
    total.events += report.events;
    total.max_frames = std::max(total.max_frames, report.max_frames);
    faulted += report.faulted;
    in_lock += report.in_lock;
    if (arguments.verbose) {
      std::cout << "seed " << options.seed << ": " << report.plans << " plans, " << report.results
                << " results, " << report.events << " events, " << report.end / 1000
                << " virtual us\n";
    }
    if (report.failures.empty()) continue;
    ++failed;
    for (const std::string& failure : report.failures) std::cout << "  " << failure << "\n";
    std::cout << "FAILED, repeat with: " << ReplayLine(options) << "\n";
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cout << arguments.seeds << " seeds, " << failed << " failed, " << faulted
            << " with a fault (" << in_lock << " in a lock), " << total.plans << " plans, "
            << total.results << " results (" << total.aborted << " aborted, " << total.early
            << " early), " << total.launched << " launches, " << total.locks << " locks with "
            << total.locked << " batches (" << total.recalled << " recalled), "
            << total.broken_groups << " broken groups, " << total.events << " events, at most "
            << total.max_frames << " frames under way, " << took.count() << " s\n"
            << "locks ended:" << UnlocksText(total) << "\n";
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tfring::sim

int main(int argc, char** argv) { return tfring::sim::Main(argc, argv); }
