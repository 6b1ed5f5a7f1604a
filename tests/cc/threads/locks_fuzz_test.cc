// Threads in locks of the schedule, in random orders: see job.h. A program of its own. The same
// options with `--seed` of a seed that has failed repeat it exactly.
#include <getopt.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "ops/runtime/base/log.h"
#include "tests/cc/threads/job.h"
#include "tests/cc/threads/scheduler.h"

namespace tfring::threads {
namespace {

constexpr char kUsage[] =
    "usage: locks_fuzz_test [--ranks=3] [--seed=1] [--seeds=20]\n"
    "                       [--fault=none|death|shutdown|abandon|cancel]\n";

int Main(int argc, char** argv) {
  static const option kOptions[] = {{"ranks", required_argument, nullptr, 'r'},
                                    {"seed", required_argument, nullptr, 's'},
                                    {"seeds", required_argument, nullptr, 'n'},
                                    {"fault", required_argument, nullptr, 'f'},
                                    {nullptr, 0, nullptr, 0}};
  const std::map<std::string, Fault> faults = {{"none", Fault::kNone},
                                               {"death", Fault::kDeath},
                                               {"shutdown", Fault::kShutdown},
                                               {"abandon", Fault::kAbandon},
                                               {"cancel", Fault::kCancel}};
  Options options;
  int seeds = 20;
  bool good = true;
  for (int letter = 0; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    if (letter == 'r') options.ranks = std::atoi(optarg);
    if (letter == 's') options.seed = std::strtoull(optarg, nullptr, 10);
    if (letter == 'n') seeds = std::atoi(optarg);
    if (letter == 'f') good = good && faults.count(optarg) > 0;
    if (letter == 'f' && good) options.fault = faults.at(optarg);
    good = good && letter != '?';
  }
  if (!good || optind != argc || options.ranks < 2 || seeds < 1) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  Config config;
  config.log_level = static_cast<int>(LogLevel::kError) + 1;  // the writer is a thread of its own
  ConfigureLog(config);
  // Of the threads one runs at a time: on one processor the next begins seven times sooner.
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
  sched_setaffinity(0, sizeof one, &one);
  Report report;
  for (int i = 0; i < seeds; ++i, ++options.seed) {
    Run(options.seed, [&] { Job(options, &report).Run(); });
  }
  std::printf(
      "%d seeds, %lld calls (%lld failed, %lld ended on their caller), %lld faults (%lld in a "
      "lock), %lld locks, %lld rounds in locks, %lld fused batches, %lld switches\n",
      seeds, static_cast<long long>(report.calls), static_cast<long long>(report.failed_calls),
      static_cast<long long>(report.by_callers), static_cast<long long>(report.faults),
      static_cast<long long>(report.in_lock), static_cast<long long>(report.locks),
      static_cast<long long>(report.rounds), static_cast<long long>(report.fused),
      static_cast<long long>(Switches()));
  return 0;
}

}  // namespace
}  // namespace tfring::threads

int main(int argc, char** argv) { return tfring::threads::Main(argc, argv); }
