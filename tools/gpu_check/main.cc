// tfring_gpu_check STEP [--driver=FILE] [--nccl=FILE] [--fakes] [--largest=BYTES]
// [--limit=SECONDS]: runs one step without TensorFlow and prints one line of JSON.
// tools/gpu_check.py runs them all, each with its own time limit.

#include <cstring>
#include <exception>
#include <iostream>
#include <string>

#include "tools/gpu_check/steps.h"

namespace tfring::gpu_check {
namespace {

struct Step {
  const char* name;
  void (*run)(const Options&, Report*);
};

constexpr Step kSteps[] = {
    {"facts", Facts},     {"pack_bits", PackBits},       {"pack_speed", PackSpeed},
    {"latency", Latency}, {"processes", Processes},      {"launch", Launch},
    {"overlap", Overlap}, {"threads", Threads},          {"hang", Hang},
    {"death", Death},     {"abort_queued", AbortQueued},
};

int RunStep(const Step& step, const Options& options) {
  Report report;
  report.Add("step", step.name);
  const double start = Seconds();
  bool ok = true;
  try {
    step.run(options, &report);
  } catch (const std::exception& error) {
    ok = false;
    report.Add("error", error.what());
  }
  report.Raw("ok", ok ? "true" : "false");
  report.Add("seconds", Seconds() - start);
  std::cout << report.Line() << std::endl;
  return ok ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  std::string wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--driver=", 0) == 0) {
      options.driver = argument.substr(std::strlen("--driver="));
    } else if (argument.rfind("--nccl=", 0) == 0) {
      options.nccl = argument.substr(std::strlen("--nccl="));
    } else if (argument == "--fakes") {
      options.fakes = true;
    } else if (argument.rfind("--largest=", 0) == 0) {
      options.largest_bytes = std::stoll(argument.substr(std::strlen("--largest=")));
    } else if (argument.rfind("--limit=", 0) == 0) {
      options.limit = std::stod(argument.substr(std::strlen("--limit=")));
    } else {
      wanted = argument;
    }
  }
  for (const Step& step : kSteps) {
    if (wanted == step.name) return RunStep(step, options);
  }
  std::cerr << "usage: tfring_gpu_check STEP [--driver=FILE] [--nccl=FILE] [--fakes] "
               "[--largest=BYTES] [--limit=SECONDS]; steps:";
  for (const Step& step : kSteps) std::cerr << " " << step.name;
  std::cerr << "\n";
  return 2;
}

}  // namespace
}  // namespace tfring::gpu_check

int main(int argc, char** argv) { return tfring::gpu_check::Main(argc, argv); }
