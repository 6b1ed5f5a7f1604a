#include "tests/fakes/cuda/settings.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/fakes/cuda/driver_types.h"
#include "tests/fakes/cuda/fake_cuda.h"

namespace fake_cuda {
namespace {

struct Entry {
  const char* name;
  long start;
};

// In the order of the enumerations.
constexpr Entry kSettings[] = {
    {"seed", 0},          {"delay_us", 0},
    {"hold", 0},          {"devices", 1},
    {"uuid", 0},          {"capability", 90},
    {"memory_mib", 2048}, {"peer_access", 1},
    {"free_waits", 0},    {"slow_event_us", 200000},
    {"hang_us", 0},       {"fault_device", -1},
    {"log", 0},           {"mig", 0},
};
constexpr Entry kCounters[] = {
    {"h2d_copies", 0},     {"h2d_bytes", 0},       {"d2h_copies", 0},  {"d2h_bytes", 0},
    {"d2d_copies", 0},     {"pageable_copies", 0}, {"launches", 0},    {"event_queries", 0},
    {"blocking_calls", 0}, {"live_pinned", 0},     {"live_events", 0},
};
constexpr Entry kFaults[] = {
    {"sticky", 0}, {"lost_host_function", 0}, {"out_of_memory", 0}, {"slow_event", 0}, {"hang", 0}};

template <size_t N>
std::string Names(const Entry (&entries)[N]) {
  std::string names;
  for (const Entry& entry : entries) names += std::string(names.empty() ? "" : ", ") + entry.name;
  return names;
}

// Numbers by name, with a start value each.
template <size_t N>
class Numbers {
 public:
  explicit Numbers(const Entry (&entries)[N]) : entries_(entries) {
    for (size_t i = 0; i < N; ++i) values_[i] = start_[i] = entries[i].start;
  }

  std::atomic<long>& operator[](size_t index) { return values_[index]; }

  size_t Find(const char* name, const char* what) const {
    for (size_t i = 0; i < N; ++i) {
      if (std::strcmp(entries_[i].name, name) == 0) return i;
    }
    Die("there is no %s \"%s\"; there are: %s", what, name, Names(entries_).c_str());
  }

  // A value of the environment, FAKE_CUDA_SEED for example, is the start value.
  void ReadEnvironment() {
    for (size_t i = 0; i < N; ++i) {
      std::string variable = std::string("FAKE_CUDA_") + entries_[i].name;
      for (char& c : variable) c = (c >= 'a' && c <= 'z') ? static_cast<char>(c - 'a' + 'A') : c;
      const char* text = std::getenv(variable.c_str());
      if (text != nullptr && *text != '\0') values_[i] = start_[i] = std::strtol(text, nullptr, 0);
    }
  }

  void Reset(size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) values_[i] = start_[i];
  }

 private:
  const Entry (&entries_)[N];
  std::array<long, N> start_;
  std::array<std::atomic<long>, N> values_;
};

// One for the process, never destroyed: stream threads run until the end.
struct State {
  State() {
    settings.ReadEnvironment();
    const char* text = std::getenv("FAKE_CUDA_INJECT");
    for (std::string rest = text == nullptr ? "" : text; !rest.empty();) {
      const std::string item = rest.substr(0, rest.find(','));
      rest.erase(0, item.size() + 1);
      const size_t colon = item.find(':');
      if (colon == std::string::npos)
        Die("FAKE_CUDA_INJECT: \"%s\" is not fault:nth", item.c_str());
      faults[faults.Find(item.substr(0, colon).c_str(), "fault")] =
          std::strtol(item.c_str() + colon + 1, nullptr, 10);
    }
  }

  Numbers<std::size(kSettings)> settings{kSettings};
  Numbers<std::size(kCounters)> counters{kCounters};
  Numbers<std::size(kFaults)> faults{kFaults};
};

State& TheState() {
  static State* state = new State;
  return *state;
}

void Print(const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof(text), format, arguments);
  std::fprintf(stderr, "fake CUDA driver: %s\n", text);
}

}  // namespace

long Get(Setting setting) { return TheState().settings[static_cast<size_t>(setting)]; }

void Count(Counter counter, long by) { TheState().counters[static_cast<size_t>(counter)] += by; }

bool Strikes(Fault fault, int device) {
  const long only = Get(Setting::kFaultDevice);
  if (only >= 0 && only != device) return false;
  std::atomic<long>& left = TheState().faults[static_cast<size_t>(fault)];
  long now = left;
  while (now > 0) {
    if (left.compare_exchange_weak(now, now - 1)) return now == 1;
  }
  return false;
}

void ResetSettings() {
  State& state = TheState();
  const long devices = Get(Setting::kDevices);
  state.settings.Reset(0, std::size(kSettings));
  state.settings[static_cast<size_t>(Setting::kDevices)] = devices;
  state.counters.Reset(0, static_cast<size_t>(Counter::kLivePinned));
  state.faults.Reset(0, std::size(kFaults));
}

void Die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  Print(format, arguments);
  va_end(arguments);
  std::abort();
}

void Log(const char* format, ...) {
  if (Get(Setting::kLog) == 0) return;
  va_list arguments;
  va_start(arguments, format);
  Print(format, arguments);
  va_end(arguments);
}

}  // namespace fake_cuda

using fake_cuda::TheState;

FAKE_CUDA_API void FakeCudaSet(const char* what, long value) {
  auto& settings = TheState().settings;
  settings[settings.Find(what, "setting")] = value;
}

FAKE_CUDA_API long FakeCudaGet(const char* what) {
  auto& settings = TheState().settings;
  return settings[settings.Find(what, "setting")];
}

FAKE_CUDA_API long FakeCudaCount(const char* what) {
  auto& counters = TheState().counters;
  return counters[counters.Find(what, "counter")];
}

FAKE_CUDA_API void FakeCudaInject(const char* fault, long nth) {
  auto& faults = TheState().faults;
  faults[faults.Find(fault, "fault")] = nth;
}
