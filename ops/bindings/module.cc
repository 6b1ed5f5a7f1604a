#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/bindings/collectives.h"
#include "ops/bindings/errors.h"
#include "ops/bindings/membership.h"
#include "ops/bindings/single_runtime.h"
#include "ops/runtime/backend/algorithms/allreduce_choice.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/process/call_notes.h"
#include "ops/runtime/process/device_library.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/process/value_reports.h"

namespace tfring {
namespace {

namespace py = pybind11;

// The first number of runs that are not TensorFlow steps. TensorFlow's step ids are random, so they
// practically never fall into a range of 40 bits.
constexpr uint64_t kOwnRuns = uint64_t{0x7F3A91} << 40;

// Returns the present runtime, or null.
std::shared_ptr<RankRuntime> Running(uint64_t generation = 0) {
  const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current(generation);
  return runtime.ok() ? *runtime : nullptr;
}

Topology RequireTopology() {
  Result<Topology> topology = ProcessRuntime::Get().topology();
  RaiseIfError(topology.status());
  return *topology;
}

Config ConfigOf(const SettingValues& settings) {
  Result<Config> config = MakeConfig(settings);
  RaiseIfError(config.status());
  return *std::move(config);
}

void Init(InitOptions options, const SettingValues& settings) {
  options.config = ConfigOf(settings);
  Status status;
  {
    py::gil_scoped_release release;
    status = ProcessRuntime::Get().Init(std::move(options));
  }
  RaiseIfError(status);
}

#if defined(__x86_64__)
std::vector<std::string> CpuFeatures() {
  std::vector<std::string> found;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx")) found.push_back("avx");
  if (__builtin_cpu_supports("avx2")) found.push_back("avx2");
  if (__builtin_cpu_supports("fma")) found.push_back("fma");
  if (__builtin_cpu_supports("f16c")) found.push_back("f16c");
  if (__builtin_cpu_supports("avx512f")) found.push_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) found.push_back("avx512bw");
  return found;
}
#else
std::vector<std::string> CpuFeatures() { return {}; }
#endif

py::dict BuildInfo() {
  py::dict info;
  info["version"] = TFRING_VERSION;
  info["build_type"] = TFRING_BUILD_TYPE;
  info["compiler"] = __VERSION__;
  info["runtime"] = RuntimePath();
  info["cpu_features"] = CpuFeatures();
  const Result<const DeviceFunctions*> devices = LoadDeviceFunctions();
  info["gpu_kernels"] = devices.ok() ? (*devices)->kernels() : "";
  return info;
}

Result<FoundNccl> NcclOf(const std::string& file) {
  const Result<const DeviceFunctions*> devices = LoadDeviceFunctions();
  if (!devices.ok()) return devices.status();
  return (*devices)->find_nccl(file);
}

std::pair<std::string, int> FindNccl(const std::string& file) {
  Result<FoundNccl> found = Unavailable("not searched");
  {
    py::gil_scoped_release release;
    found = NcclOf(file);
  }
  RaiseIfError(found.status());
  return {found->path, found->version};
}

std::vector<std::string> AllreducePricesOf(const std::vector<std::string>& hosts,
                                           const SettingValues& settings) {
  return AllreducePrices(hosts, ConfigOf(settings));
}

// Owns a reference to `function`. Python raises its exception in the main thread.
int CallPending(void* function) {
  const auto called = py::reinterpret_steal<py::object>(static_cast<PyObject*>(function));
  const auto result = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(called.ptr()));
  return result ? 0 : -1;
}

bool CallInMainThread(const py::function& function) {
  PyObject* const held = function.inc_ref().ptr();
  if (Py_AddPendingCall(&CallPending, held) == 0) return true;
  Py_DECREF(held);
  return false;
}

void DefineFailures(py::module_& m) {
  using py::arg;
  m.def(
      "begin_run",
      [](ProcessSetId process_set) {
        static std::atomic<uint64_t> last{0};
        const uint64_t run = kOwnRuns | ++last;
        if (const auto runtime = Running()) runtime->BeginRun(run, process_set);
        return run;
      },
      arg("process_set") = kGlobalProcessSet,
      "Begins a run, which fails on all ranks of the set if it fails here; returns its number.");
  m.def(
      "end_run",
      [](uint64_t run) {
        if (const auto runtime = Running()) runtime->EndRun(run);
      },
      arg("run"));
  m.def(
      "fail_run",
      [](uint64_t run, const std::string& cause) {
        if (const auto runtime = Running()) runtime->FailRun(run, Aborted(cause));
      },
      arg("run"), arg("cause"), "Ends a run that has failed; all ranks get the cause.");
  m.def(
      "attempt",
      [](ProcessSetId process_set) {
        const auto runtime = Running();
        return runtime == nullptr ? 0 : runtime->Attempt(process_set);
      },
      arg("process_set") = kGlobalProcessSet,
      "How many steps of the process set have failed: equal on all ranks after each failure.");
  m.def(
      "cancel_calls",
      [](const std::string& cause, const py::function& unless) {
        // From the answer on this thread holds the GIL, so no other thread reaches its next call.
        if (unless().cast<bool>()) return false;
        if (const auto runtime = Running()) runtime->CancelCalls(Aborted(cause));
        return true;
      },
      arg("cause"), arg("unless"),
      "Withdraws all waiting calls of this rank, unless `unless()` is true; all ranks get the "
      "cause. "
      "Returns whether it did so.");
  m.def(
      "call_in_main_thread", &CallInMainThread, arg("function"),
      "Has the main thread call `function` soon, after handlers of signals. False if too many such "
      "calls are pending.");
}

void NameGradients(const std::string& collective, std::vector<std::string> variables,
                   bool loss_scaled) {
  NameTensors(collective, {std::move(variables), loss_scaled});
}

void DefineLog(py::module_& m) {
  using py::arg;
  m.def(
      "configure_log",
      [](const SettingValues& settings) {
        const Config config = ConfigOf(settings);
        ConfigureLog(config);
        return config.log_level;
      },
      arg("settings"), py::call_guard<py::gil_scoped_release>(),
      "Sets the format of later lines and which are written; returns the level.");
  m.def(
      "log",
      [](int level, const std::string& text, const std::string& file, int line) {
        Log(static_cast<LogLevel>(level), text, {file.c_str(), line});
      },
      arg("level"), arg("text"), arg("file"), arg("line"), py::call_guard<py::gil_scoped_release>(),
      "Logs a line in the format of the runtime's own.");
  m.def(
      "flush_log",
      [](double seconds) { return FlushLog(static_cast<Duration>(seconds * kSecond)); },
      arg("seconds"), py::call_guard<py::gil_scoped_release>(),
      "Waits until all lines so far are written; false if that takes longer.");
}

void DefineRecord(py::module_& m) {
  using py::arg;
  m.def(
      "mark_step",
      [](int64_t step, int64_t samples, int64_t input_nanoseconds) {
        if (const auto runtime = Running()) runtime->MarkStep(step, samples, input_nanoseconds);
      },
      arg("step"), arg("samples") = -1, arg("input_nanoseconds") = -1,
      "Records that a step begins, with the samples trained on and the time spent waiting for "
      "input "
      "since the start. Negative: unknown.");
  m.def(
      "mark_fit",
      [](int64_t epoch, int64_t epochs, int64_t last_step, std::optional<double> loss,
         int64_t callback_nanoseconds) {
        if (const auto runtime = Running()) {
          runtime->MarkFit({epoch, epochs, last_step, loss, callback_nanoseconds});
        }
      },
      arg("epoch"), arg("epochs"), arg("last_step"), arg("loss"), arg("callback_nanoseconds"),
      "Records where fit is: its epoch, from 1, and its last step; the loss of the epoch so far "
      "and "
      "the time spent in callbacks since the start. 0: unknown.");
  m.def(
      "mark_memory",
      [](int64_t weights, int64_t states, int64_t copies) {
        if (const auto runtime = Running()) runtime->MarkMemory({weights, states, copies});
      },
      arg("weights"), arg("states"), arg("copies"),
      "Records the bytes of weights and states of optimizers, and of what commits keep.");
  m.def(
      "mark",
      [](const std::string& text) {
        if (const auto runtime = Running()) runtime->Mark(text);
      },
      arg("text"), "Adds a line of the program to the record.");
  m.def(
      "pause_record",
      [](bool paused) {
        if (const auto runtime = Running()) runtime->PauseRecord(paused);
      },
      arg("paused"),
      "Keeps calls out of the record while it is paused, to measure the cost of the record.");
  m.def("name_tensors", &NameGradients, arg("collective"), arg("variables"), arg("loss_scaled"),
        "Reports of NaN and Inf name the tensors of this collective as gradients of these "
        "variables.");
  m.def("describe_layout", &DescribeLayout, arg("hash"), arg("text"),
        "Gives the text of a layout hash, for the error if the ranks' gradients differ.");
  m.def(
      "note_errors",
      [](std::string note, std::string stall, uint64_t generation) {
        if (const auto runtime = Running(generation)) {
          runtime->NoteErrors(std::move(note), std::move(stall));
        }
      },
      arg("note"), arg("stall") = "", arg("generation") = 0,
      py::call_guard<py::gil_scoped_release>(),
      "Appends `note` to errors that concern several ranks, and `stall` before it to those of "
      "stalls. "
      "`generation` 0: the present one.");
  m.def(
      "wait_for_warning",
      [](double timeout,
         uint64_t generation) -> std::optional<std::pair<bool, std::vector<std::string>>> {
        const auto limit = static_cast<Duration>(timeout * static_cast<double>(kSecond));
        std::shared_ptr<WarningEvent> event;  // the runtime may end while this thread waits
        if (const auto runtime = Running(generation)) event = runtime->warning_event();
        if (event == nullptr) return std::nullopt;
        std::vector<std::string> warnings;
        const WarningEvent::Outcome outcome = event->Wait(limit, &warnings);
        if (outcome == WarningEvent::Outcome::kEnd) return std::nullopt;
        return std::pair(outcome == WarningEvent::Outcome::kWarning, std::move(warnings));
      },
      arg("timeout"), arg("generation") = 0, py::call_guard<py::gil_scoped_release>(),
      "Waits until the runtime warns or its generation breaks (True, and the warnings, which the "
      "caller must log), for `timeout` seconds (False), or until the generation is over (None).");
}

// Keys are bytes, not text.
std::map<Rank, std::pair<py::bytes, py::bytes>> ControlKeysOf(const InitOptions& options) {
  return {options.control_keys.begin(), options.control_keys.end()};
}

void DefineOptions(py::module_& m) {
  py::class_<Topology>(m, "Topology")
      .def(py::init<>())
      .def_readwrite("rank", &Topology::rank)
      .def_readwrite("size", &Topology::size)
      .def_readwrite("local_rank", &Topology::local_rank)
      .def_readwrite("local_size", &Topology::local_size)
      .def_readwrite("cross_rank", &Topology::cross_rank)
      .def_readwrite("cross_size", &Topology::cross_size);
  py::class_<RecordOptions>(m, "RecordOptions")
      .def(py::init<>())
      .def_readwrite("enabled", &RecordOptions::enabled)
      .def_readwrite("keep", &RecordOptions::keep)
      .def_readwrite("path", &RecordOptions::path)
      .def_readwrite("job", &RecordOptions::job)
      .def_readwrite("boot", &RecordOptions::boot);
  py::class_<InitOptions>(m, "InitOptions")
      .def(py::init<>())
      .def_readwrite("topology", &InitOptions::topology)
      .def_readwrite("hosts", &InitOptions::hosts)
      .def_readwrite("control_fds", &InitOptions::control_fds)
      .def_readwrite("data_fds", &InitOptions::data_fds)
      .def_readwrite("local_pids", &InitOptions::local_pids)
      .def_property("control_keys", &ControlKeysOf,
                    [](InitOptions& self, decltype(InitOptions::control_keys) keys) {
                      self.control_keys = std::move(keys);
                    })
      .def_readwrite("data_listener", &InitOptions::data_listener)
      .def_readwrite("data_endpoints", &InitOptions::data_endpoints)
      .def_property(
          "data_key", [](const InitOptions& self) { return py::bytes(self.data_key); },
          [](InitOptions& self, std::string key) { self.data_key = std::move(key); })
      .def_readwrite("mpi_plugin", &InitOptions::mpi_plugin)
      .def_readwrite("mpi_module", &InitOptions::mpi_module)
      .def_readwrite("mpi_communicator", &InitOptions::mpi_communicator)
      .def_readwrite("start_timeout_seconds", &InitOptions::start_timeout_seconds)
      .def_readwrite("generation", &InitOptions::generation)
      .def_readwrite("nonce", &InitOptions::nonce)
      .def_readwrite("last_process_set", &InitOptions::last_process_set)
      .def_readwrite("record", &InitOptions::record);
}

void DefineLifecycle(py::module_& m) {
  using py::arg;
  m.def("init", &Init, arg("options"), arg("settings"),
        "Starts the runtime, which owns the descriptors from then on and closes them.");
  // Releases the GIL: shutdown waits for callbacks, and TensorFlow may run Python in them
  // (tf.py_function).
  m.def(
      "shutdown", [](const std::string& error) { ProcessRuntime::Get().Shutdown(error); },
      arg("error") = "", py::call_guard<py::gil_scoped_release>(),
      "Stops the runtime, if there is one. `error` is the exception that ends this process; the "
      "other ranks' errors name it.");
  m.def("is_initialized", [] { return ProcessRuntime::Get().initialized(); });
  m.def("rank", [] { return RequireTopology().rank; });
  m.def("size", [] { return RequireTopology().size; });
  m.def("local_rank", [] { return RequireTopology().local_rank; });
  m.def("local_size", [] { return RequireTopology().local_size; });
  m.def("cross_rank", [] { return RequireTopology().cross_rank; });
  m.def("cross_size", [] { return RequireTopology().cross_size; });
  m.def(
      "process_sets",
      [] {
        const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current();
        RaiseIfError(runtime.status());
        return (*runtime)->AllProcessSets();
      },
      "The ranks of each process set by id; 0 is the global one. Raises before init and in a "
      "forked "
      "child.");
  m.def(
      "counters",
      [] {
        const auto runtime = Running();
        return runtime == nullptr ? std::map<std::string, int64_t>() : runtime->Counters();
      },
      "Counters since init by name; empty without a runtime.");
  m.def("build_info", &BuildInfo, "How this binding was built and what it runs on.");
  m.def("allreduce_prices", &AllreducePricesOf, arg("hosts"), arg("settings"),
        "Lines with the cost of allreduces of some sizes between these hosts, by rank, and the "
        "choice.");
  m.def(
      "find_nccl", &FindNccl, arg("file"),
      "Loads the NCCL that collectives use; returns its path and version. CoreError says why there "
      "is none.");
}

void DefineGenerations(py::module_& m) {
  using py::arg;
  py::class_<GenerationState> state(m, "GenerationState");
  py::enum_<GenerationState::Phase>(state, "Phase")
      .value("up", GenerationState::Phase::kUp)
      .value("broken", GenerationState::Phase::kBroken)
      .value("down", GenerationState::Phase::kDown);
  state.def_readonly("number", &GenerationState::number)
      .def_readonly("phase", &GenerationState::phase)
      .def_property_readonly(
          "error",
          [](const GenerationState& self) { return self.error.ok() ? "" : self.error.ToString(); })
      .def_readonly("lost", &GenerationState::lost)
      .def_readonly("departed", &GenerationState::departed)
      .def_readonly("failed_here", &GenerationState::failed_here)
      .def_readonly("failed_elsewhere", &GenerationState::failed_elsewhere);
  m.def(
      "generation_state", [] { return ProcessRuntime::Get().generation(); },
      "The state of the present generation, or the end of the last one.");
  m.def(
      "abandoned", [] { return ProcessRuntime::Get().abandoned(); },
      "How many abandoned generations have not ended yet.");
  m.def(
      "last_process_set", [] { return ProcessRuntime::Get().last_process_set(); },
      "The highest id of a process set in this process so far; 0 without one.");
  m.def(
      "abandon",
      [](const std::string& why, uint64_t generation) {
        ProcessRuntime::Get().Abandon(why, generation);
      },
      arg("why"), arg("generation") = 0, py::call_guard<py::gil_scoped_release>(),
      "Ends a generation (0: the present one) without a goodbye and without waiting. Its calls end "
      "with errors; init may follow. Does nothing if it is not up.");
}

}  // namespace
}  // namespace tfring

PYBIND11_MODULE(_core, m) {
  const std::string problem = tfring::CheckSingleRuntime();
  if (!problem.empty()) throw pybind11::import_error(problem);
  m.doc() = "The tfring runtime for Python: start, stop, and collectives on numpy arrays.";
  tfring::DefineCoreError(m);
  tfring::DefineLog(m);
  tfring::DefineOptions(m);
  tfring::DefineLifecycle(m);
  tfring::DefineGenerations(m);
  tfring::DefineRecord(m);
  tfring::DefineFailures(m);
  tfring::DefineCollectives(m);
  tfring::DefineMembership(m);
}
