#include <getopt.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "ops/sim/control/step_cost.h"

// tfring_control_sim: what the control messages of a big job cost; see kUsage.
namespace tfring::sim {
namespace {

constexpr char kUsage[] =
    "usage: tfring_control_sim [--ranks=64] [--tensors=161] [--fan-out=10] [--hold-us=1000]\n"
    "                          [--skew-us=0] [--others=0] [--seed=1]\n"
    "                          [--scheme=star|tree|horovod_gather|horovod_ring]\n"
    "                          [--latency-us=20] [--bytes-per-second=1250000000]\n"
    "                          [--message-us=5] [--request-ns=400] [--id-ns=200]\n"
    "Plays the control messages of a first step and of a steady one with as many gradients as\n"
    "--tensors, shaped like those of ResNet-50, and prints a line of JSON for each. In the\n"
    "star and the tree the real state machines of all ranks run. --others: so many ranks call in\n"
    "another order.\n";

bool ParseNumber(const char* text, int64_t low, int64_t high, int64_t* value) {
  char* end = nullptr;
  *value = std::strtoll(text, &end, 10);
  return end != text && *end == '\0' && *value >= low && *value <= high;
}

bool ParseOption(int letter, ControlOptions* options) {
  if (letter == 's') {
    options->scheme = optarg;
    return options->scheme == "star" || options->scheme == "tree" ||
           options->scheme == "horovod_gather" || options->scheme == "horovod_ring";
  }
  int64_t number = 0;
  if (!ParseNumber(optarg, letter == 'r' || letter == 't' || letter == 'b' ? 1 : 0, INT64_MAX / 2,
                   &number)) {
    return false;
  }
  Costs& costs = options->costs;
  if (letter == 'r') options->ranks = static_cast<int>(std::min<int64_t>(number, 100000));
  if (letter == 't') options->tensors = static_cast<int>(std::min<int64_t>(number, 100000));
  if (letter == 'f') options->fan_out = static_cast<int>(std::min<int64_t>(number, 100000));
  if (letter == 'h') options->hold = number * kMicrosecond;
  if (letter == 'k') options->skew = number * kMicrosecond;
  if (letter == 'o') options->others = static_cast<int>(std::min<int64_t>(number, 100000));
  if (letter == 'e') options->seed = static_cast<uint64_t>(number);
  if (letter == 'l') costs.latency = number * kMicrosecond;
  if (letter == 'b') costs.bytes_per_second = static_cast<double>(number);
  if (letter == 'm') costs.message = number * kMicrosecond;
  if (letter == 'q') costs.request = number;
  if (letter == 'i') costs.cache_id = number;
  return letter != '?' && options->fan_out >= 2;
}

bool Parse(int argc, char** argv, ControlOptions* options) {
  static const option kOptions[] = {{"scheme", required_argument, nullptr, 's'},
                                    {"ranks", required_argument, nullptr, 'r'},
                                    {"tensors", required_argument, nullptr, 't'},
                                    {"fan-out", required_argument, nullptr, 'f'},
                                    {"hold-us", required_argument, nullptr, 'h'},
                                    {"skew-us", required_argument, nullptr, 'k'},
                                    {"others", required_argument, nullptr, 'o'},
                                    {"seed", required_argument, nullptr, 'e'},
                                    {"latency-us", required_argument, nullptr, 'l'},
                                    {"bytes-per-second", required_argument, nullptr, 'b'},
                                    {"message-us", required_argument, nullptr, 'm'},
                                    {"request-ns", required_argument, nullptr, 'q'},
                                    {"id-ns", required_argument, nullptr, 'i'},
                                    {nullptr, 0, nullptr, 0}};
  int letter = 0;
  while ((letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1) {
    if (letter == '?' || !ParseOption(letter, options)) return false;
  }
  return optind == argc;
}

int Main(int argc, char** argv) {
  ControlOptions options;
  if (!Parse(argc, argv, &options)) {
    std::cerr << kUsage;
    return 2;
  }
  const bool real = options.scheme == "star" || options.scheme == "tree";
  for (const StepCost& cost : real ? RunRealSteps(options) : RunHorovodSteps(options)) {
    std::cout << "{\"scheme\": \"" << options.scheme << "\", \"ranks\": " << options.ranks
              << ", \"tensors\": " << options.tensors << ", \"fan_out\": " << options.fan_out
              << ", \"others\": " << options.others << ", \"step\": \"" << cost.step
              << "\", \"hops\": " << cost.hops << ", \"messages\": " << cost.messages
              << ", \"busiest_messages\": " << cost.busiest.messages
              << ", \"busiest_bytes\": " << cost.busiest.bytes << ", \"seconds\": " << cost.seconds
              << ", \"measured_request_ns\": " << cost.measured_request_ns << "}\n";
  }
  return 0;
}

}  // namespace
}  // namespace tfring::sim

int main(int argc, char** argv) { return tfring::sim::Main(argc, argv); }
