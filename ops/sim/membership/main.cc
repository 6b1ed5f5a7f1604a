#include <getopt.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "ops/sim/membership/job.h"

// tfring_membership_sim: runs many simulated elastic jobs, one per seed; see kUsage.
namespace tfring::sim {
namespace {

constexpr char kUsage[] =
    "usage: tfring_membership_sim [--workers=0] [--faults=-1] [--seed=1] [--seeds=1] [--verbose]\n"
    "Runs the coordinator and all workers of an elastic job in one process, on a virtual clock, a\n"
    "network that fails, hosts that come and go and a coordinator that dies, and checks that "
    "generations ascend, that no\n"
    "committed step and no sample is lost or done twice, and that the job goes on after the last\n"
    "fault. 0 workers: 4 to 64; -1 faults: 0 to 6. A seed repeats a run exactly; of a run that\n"
    "fails the events are printed.\n";

constexpr size_t kTraceLines = 120;

struct Arguments {
  JobOptions options;
  int64_t seeds = 1;
  bool verbose = false;
};

bool ParseNumber(const char* text, int64_t low, int64_t high, int64_t* value) {
  char* end = nullptr;
  *value = std::strtoll(text, &end, 10);
  return end != text && *end == '\0' && *value >= low && *value <= high;
}

bool Parse(int argc, char** argv, Arguments* arguments) {
  static const option kOptions[] = {
      {"workers", required_argument, nullptr, 'w'}, {"faults", required_argument, nullptr, 'f'},
      {"seed", required_argument, nullptr, 's'},    {"seeds", required_argument, nullptr, 'n'},
      {"verbose", no_argument, nullptr, 'v'},       {nullptr, 0, nullptr, 0}};
  JobOptions& options = arguments->options;
  int64_t number = 0;
  bool good = true;
  int letter = 0;
  while (good && (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1) {
    if (letter == 'w') {
      good = ParseNumber(optarg, 0, 1024, &number) && number != 1;
      options.workers = static_cast<int>(number);
    } else if (letter == 'f') {
      good = ParseNumber(optarg, -1, 1000, &number);
      options.faults = static_cast<int>(number);
    } else if (letter == 's') {
      good = ParseNumber(optarg, 0, INT64_MAX / 10000, &number);
      options.seed = static_cast<uint64_t>(number);
    } else if (letter == 'n') {
      good = ParseNumber(optarg, 1, INT64_MAX / 2, &arguments->seeds);
    } else if (letter == 'v') {
      arguments->verbose = true;
    } else {
      good = false;
    }
  }
  return good && optind == argc;
}

// Runs the seed once more and prints its last events.
void Explain(JobOptions options, const JobReport& report) {
  options.trace = true;
  const JobReport again = Job(options).Run();
  const size_t lines = again.trace.size();
  for (size_t i = lines > kTraceLines ? lines - kTraceLines : 0; i < lines; ++i) {
    std::cout << "    " << again.trace[i] << "\n";
  }
  for (const std::string& failure : report.failures) std::cout << "  " << failure << "\n";
  if (again.failures != report.failures) std::cout << "  A second run of the seed was another.\n";
  std::cout << "FAILED, repeat with: " << ReplayLine(options) << "\n";
}

void Add(const JobReport& report, JobReport* total) {
  total->generations += report.generations;
  total->joins += report.joins;
  total->commits += report.commits;
  total->fallbacks += report.fallbacks;
  total->publications += report.publications;
  total->faults += report.faults;
  total->events += report.events;
  for (size_t state = 0; state < report.kills.size(); ++state) {
    total->kills[state] += report.kills[state];
  }
}

void PrintTotal(const JobReport& total) {
  std::cout << total.faults << " faults, " << total.generations << " generations, " << total.joins
            << " with joiners, " << total.fallbacks
            << " from an older commit because all were lost, " << total.commits << " commits, "
            << total.publications << " published, " << total.events << " events, workers killed:";
  for (size_t state = 0; state < total.kills.size(); ++state) {
    if (total.kills[state] == 0) continue;
    std::cout << " " << total.kills[state] << " "
              << WorkerStateName(static_cast<membership::WorkerState>(state)) << ",";
  }
  std::cout << " ";
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) {
    std::cerr << kUsage;
    return 2;
  }
  JobOptions options = arguments.options;
  JobReport total;
  int64_t failed = 0;
  int64_t finished = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < arguments.seeds; ++i, ++options.seed) {
    const JobReport report = Job(options).Run();
    Add(report, &total);
    finished += report.finished ? 1 : 0;
    if (arguments.verbose) {
      std::cout << "seed " << options.seed << ": " << report.generations << " generations, "
                << report.commits << " commits, " << report.faults << " faults, " << report.events
                << " events, " << report.end / kMillisecond << " virtual ms\n";
    }
    if (report.failures.empty()) continue;
    // Explain only the first three failures.
    if (++failed <= 3) Explain(options, report);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cout << arguments.seeds << " seeds, " << failed << " failed, " << finished
            << " jobs finished, ";
  PrintTotal(total);
  std::cout << took.count() << " s\n";
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tfring::sim

int main(int argc, char** argv) { return tfring::sim::Main(argc, argv); }
