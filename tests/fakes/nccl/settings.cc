#include "tests/fakes/nccl/settings.h"

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include "tests/fakes/nccl/communicator.h"
#include "tests/fakes/nccl/fake_nccl.h"

namespace fake_nccl {
namespace {

using Numbers = std::map<std::string, long>;

struct AllNumbers {
  std::mutex mutex;  // guards all below
  Numbers settings;
  Numbers counters;
};

const Numbers& Defaults() {
  static const auto* defaults = new Numbers{
      {"version", 22707}, {"in_progress_polls", 1}, {"hang_init", 0},    {"hang_group", 0},
      {"hang_abort", 0},  {"kernel_slots", 0},      {"remote_error", 0}, {"only_rank", -1},
      {"fail_call", 0},   {"error_at_kernel", 0},   {"hang_kernel", 0},  {"error_code", 2},
      {"kill_rank", -1},  {"fail_alone", -1},       {"fail_init", 0},    {"fail_late", 0}};
  return *defaults;
}

const Numbers& NoCounts() {
  static const auto* zero =
      new Numbers{{"kernels", 0}, {"mismatches", 0}, {"bad_handles", 0}, {"early_calls", 0},
                  {"inits", 0},   {"aborts", 0},     {"destroys", 0},    {"alone", 0}};
  return *zero;
}

long& Find(Numbers& numbers, const std::string& what) {
  const auto found = numbers.find(what);
  if (found == numbers.end()) {
    std::fprintf(stderr, "fake NCCL: there is no '%s'; see fake_nccl.h\n", what.c_str());
    std::abort();
  }
  return found->second;
}

void ReadEnvironment(Numbers& settings) {
  const char* text = std::getenv("TFRING_FAKE_NCCL");
  if (text == nullptr) return;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t equals = item.find('=');
    const std::string value = equals == std::string::npos ? "1" : item.substr(equals + 1);
    Find(settings, item.substr(0, equals)) = std::atol(value.c_str());
  }
}

// Never freed: threads of the library may outlive main.
AllNumbers& TheNumbers() {
  static AllNumbers* state = [] {
    auto* made = new AllNumbers;
    made->settings = Defaults();
    made->counters = NoCounts();
    ReadEnvironment(made->settings);
    return made;
  }();
  return *state;
}

}  // namespace

long Setting(const char* what) {
  AllNumbers& state = TheNumbers();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return Find(state.settings, what);
}

void Count(const char* what, long by) {
  AllNumbers& state = TheNumbers();
  const std::lock_guard<std::mutex> lock(state.mutex);
  Find(state.counters, what) += by;
}

bool Strikes(const char* what, int rank) {
  AllNumbers& state = TheNumbers();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const long only = Find(state.settings, "only_rank");
  if (only >= 0 && only != rank) return false;
  long& left = Find(state.settings, what);
  return left > 0 && --left == 0;
}

void Say(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "fake NCCL: %s\n", text);
}

void Pause::operator()() {
  if (++looks_ < 20) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace fake_nccl

extern "C" {

__attribute__((visibility("default"))) void FakeNcclSet(const char* what, long value) {
  fake_nccl::AllNumbers& state = fake_nccl::TheNumbers();
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    fake_nccl::Find(state.settings, what) = value;
  }
  if (std::string(what) == "kill_rank" && value >= 0) {
    fake_nccl::Communicators::Kill(static_cast<int>(value));
  }
}

__attribute__((visibility("default"))) void FakeNcclReset() {
  fake_nccl::AllNumbers& state = fake_nccl::TheNumbers();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.settings = fake_nccl::Defaults();
  state.counters = fake_nccl::NoCounts();
}

__attribute__((visibility("default"))) long FakeNcclCount(const char* what) {
  const std::string name = what;
  if (name == "communicators") return fake_nccl::Communicators::Alive();
  fake_nccl::AllNumbers& state = fake_nccl::TheNumbers();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return fake_nccl::Find(state.counters, name);
}

}  // extern "C"
