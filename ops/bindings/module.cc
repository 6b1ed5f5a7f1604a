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
#include "ops/runtime/backend/price_report.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/process/device_library.h"
#include "ops/runtime/process/layout_texts.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/process/value_reports.h"

namespace tfring {
namespace {

namespace py = pybind11;

// Where the numbers of runs begin that are no step ids of TensorFlow's, which are random: with 40
// bits of their own the chance that two meet is nil.
constexpr uint64_t kOwnRuns = uint64_t{0x7F3A91} << 40;

// The present runtime; null where there is none, which then has nothing to do.
std::shared_ptr<RankRuntime> Running(uint64_t generation = 0) {
  const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current(generation);
  return runtime.ok() ? *runtime : nullptr;
}

Topology RequireTopology() {
  Result<Topology> topology = ProcessRuntime::Get().topology();
  RaiseIfError(topology.status());
  return *topology;
}

RecordOptions RecordOptionsOf(const std::optional<std::map<std::string, std::string>>& record) {
  RecordOptions options;
  options.enabled = record.has_value();
  if (!record) return options;
  const auto value = [&record](const char* key) {
    const auto found = record->find(key);
    return found == record->end() ? std::string() : found->second;
  };
  options.path = value("path");
  options.job = value("job");
  options.boot = value("boot");
  options.keep = !value("keep").empty();
  return options;
}

// {"plugin": path, "module": path, "communicator": "3"}; empty: MPI carries no data.
void SetMpi(const std::map<std::string, std::string>& mpi, InitOptions* options) {
  if (mpi.empty()) return;
  options->mpi_plugin = mpi.at("plugin");
  options->mpi_module = mpi.at("module");
  options->mpi_communicator = std::stoi(mpi.at("communicator"));
}

Config ConfigOf(const SettingValues& settings) {
  Result<Config> config = MakeConfig(settings);
  RaiseIfError(config.status());
  return *std::move(config);
}

// A listening socket, address and port of each rank's, and a key: see PeerAddresses.
using Others = std::tuple<int, std::vector<std::pair<std::string, int>>, py::bytes>;

void Init(int rank, int size, int local_rank, int local_size, int cross_rank, int cross_size,
          std::vector<std::string> hosts, std::map<Rank, int> control_fds,
          std::map<Rank, int> data_fds, std::map<Rank, int64_t> local_pids,
          const std::map<Rank, std::pair<py::bytes, py::bytes>>& control_keys,
          const SettingValues& config, double start_timeout,
          const std::optional<std::map<std::string, std::string>>& record, uint64_t generation,
          uint64_t nonce, ProcessSetId last_process_set,
          const std::map<std::string, std::string>& mpi, std::optional<Others> others) {
  InitOptions options;
  SetMpi(mpi, &options);
  options.generation = generation;
  options.nonce = nonce;
  options.last_process_set = last_process_set;
  options.record = RecordOptionsOf(record);
  options.topology = {rank, size, local_rank, local_size, cross_rank, cross_size};
  options.hosts = std::move(hosts);
  options.control_fds = std::move(control_fds);
  options.data_fds = std::move(data_fds);
  options.local_pids = std::move(local_pids);
  for (const auto& [peer, keys] : control_keys) options.control_keys[peer] = keys;
  if (others) {
    std::tie(options.data_listener, options.data_endpoints, options.data_key) = *std::move(others);
  }
  options.config = ConfigOf(config);
  options.start_timeout_seconds = start_timeout;
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

py::dict FindNccl(const std::string& file) {
  Result<FoundNccl> found = Unavailable("not searched");
  {
    py::gil_scoped_release release;
    found = NcclOf(file);
  }
  py::dict said;
  said["path"] = found.ok() ? found->path : "";
  said["version"] = found.ok() ? found->version : 0;
  said["trouble"] = found.ok() ? "" : found.status().message();
  return said;
}

std::vector<std::string> AllreducePricesOf(const std::vector<std::string>& hosts,
                                           const SettingValues& settings) {
  return DescribePrices(hosts, ConfigOf(settings));
}

// Takes over a reference to `function`. What it raises is raised in the main thread.
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
      "Begins what fails on all ranks of the set if it fails here; returns its number.");
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
      arg("run"), arg("cause"), "Instead of end_run; all ranks get the cause.");
  m.def(
      "attempt",
      [](ProcessSetId process_set) {
        const auto runtime = Running();
        return runtime == nullptr ? 0 : runtime->Attempt(process_set);
      },
      arg("process_set") = kGlobalProcessSet,
      "How many steps of the process set have failed; the same on all ranks after each failure.");
  m.def(
      "cancel_calls",
      [](const std::string& cause, const py::function& unless) {
        // From the answer on the GIL is kept, so no thread comes out of a call into its next one.
        if (unless().cast<bool>()) return false;
        if (const auto runtime = Running()) runtime->CancelCalls(Aborted(cause));
        return true;
      },
      arg("cause"), arg("unless"),
      "Withdraws all calls of this rank that wait, and all ranks get the cause, unless a function "
      "says that this is too late; returns whether it was done.");
  m.def("call_in_main_thread", &CallInMainThread, arg("function"),
        "The interpreter calls it when the main thread is there next, after handlers of signals. "
        "False if too many such calls are pending.");
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
      "How lines look, and which are written, from now on; returns the level.");
  m.def(
      "log",
      [](int level, const std::string& text, const std::string& file, int line) {
        Log(static_cast<LogLevel>(level), text, {file.c_str(), line});
      },
      arg("level"), arg("text"), arg("file"), arg("line"), py::call_guard<py::gil_scoped_release>(),
      "Logs a line, as the runtime does its own.");
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
      "For the record: a step begins; samples trained on and time spent in waiting for input, both "
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
      "For the record: fit is in this epoch, from 1 on, of so many, and ends after that step; the "
      "loss of the epoch so far, and the time spent in callbacks since the start. 0: unknown.");
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
      "While it is paused, calls leave no trace in the record: for measuring what that costs.");
  m.def("name_tensors", &NameGradients, arg("collective"), arg("variables"), arg("loss_scaled"),
        "Reports of NaN and Inf name the tensors of this collective as gradients of these "
        "variables.");
  m.def("describe_layout", &DescribeLayout, arg("hash"), arg("text"),
        "Tells what a layout hash stands for, for the error where the ranks' gradients differ.");
  m.def(
      "note_errors",
      [](std::string note, std::string stall, uint64_t generation) {
        if (const auto runtime = Running(generation)) {
          runtime->NoteErrors(std::move(note), std::move(stall));
        }
      },
      arg("note"), arg("stall") = "", arg("generation") = 0,
      py::call_guard<py::gil_scoped_release>(),
      "Errors that concern several ranks end with `note` from now on; those of stalls have `stall` "
      "before it. Of the generation of this number; 0: of the present one.");
  m.def(
      "wait_for_warning",
      [](double timeout,
         uint64_t generation) -> std::optional<std::pair<bool, std::vector<std::string>>> {
        const auto limit = static_cast<Duration>(timeout * static_cast<double>(kSecond));
        std::shared_ptr<WarningBell> bell;  // the runtime may end while this thread waits
        if (const auto runtime = Running(generation)) bell = runtime->bell();
        if (bell == nullptr) return std::nullopt;
        std::vector<std::string> warnings;
        const WarningBell::Heard heard = bell->Wait(limit, &warnings);
        if (heard == WarningBell::Heard::kEnd) return std::nullopt;
        return std::pair(heard == WarningBell::Heard::kWarning, std::move(warnings));
      },
      arg("timeout"), arg("generation") = 0, py::call_guard<py::gil_scoped_release>(),
      "Blocks until the runtime has something to warn of or nothing runs any more (True, and the "
      "warnings, which the caller logs), for `timeout` seconds (False), or until it, or the "
      "generation of this number, is over (None).");
}

void DefineLifecycle(py::module_& m) {
  using py::arg;
  m.def(
      "init", &Init, py::kw_only(), arg("rank"), arg("size"), arg("local_rank"), arg("local_size"),
      arg("cross_rank"), arg("cross_size"), arg("hosts"), arg("control_fds"), arg("data_fds"),
      arg("local_pids"), arg("control_keys") = std::map<Rank, std::pair<py::bytes, py::bytes>>(),
      arg("config"), arg("start_timeout") = 60.0,
      arg("record") = std::map<std::string, std::string>(), arg("generation") = 0, arg("nonce") = 0,
      arg("last_process_set") = kGlobalProcessSet,
      arg("mpi") = std::map<std::string, std::string>(), arg("others") = std::nullopt,
      "Starts the runtime, which owns the descriptors from then on and closes them. `record` is "
      "where it records what it does: path, job, boot, and keep if the file is to stay after an "
      "end without an error. None: nothing is recorded. `generation`: its number, above all "
      "before; 0: the next one. `nonce`: the same on all ranks of the generation and in no other "
      "one; frames of ranks with another one are refused. 0: they are not compared. "
      "`last_process_set`: the highest id that a process set has had "
      "on any of the ranks. `mpi`: for CPU_OPERATIONS=mpi, paths of the plug-in and of the module "
      "that has loaded MPI, and the Fortran number of a communicator of all ranks, which the "
      "runtime frees: plugin, module, communicator. `others`: what connects ranks that are not in "
      "`data_fds` when they need it: a listening socket, address and port of each rank's, and a "
      "key "
      "of 32 bytes.");
  // Without the GIL: shutdown waits for callbacks, and TensorFlow may run Python in them
  // (tf.py_function).
  m.def(
      "shutdown", [](const std::string& error) { ProcessRuntime::Get().Shutdown(error); },
      arg("error") = "", py::call_guard<py::gil_scoped_release>(),
      "Stops the runtime; does nothing without one. `error` is the exception that ends the "
      "process, "
      "for the other ranks.");
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
      "The ranks of each process set, by its id; 0 is the global one. An error where no collective "
      "can run: before init and in a forked child.");
  m.def(
      "counters",
      [] {
        const auto runtime = Running();
        return runtime == nullptr ? std::map<std::string, int64_t>() : runtime->Counters();
      },
      "Counters since init by name; empty without a runtime.");
  m.def("build_info", &BuildInfo, "How this binding was built and what it runs on.");
  m.def("allreduce_prices", &AllreducePricesOf, arg("hosts"), arg("settings"),
        "What allreduces of some sizes cost between hosts (by rank), and what is chosen; lines.");
  m.def("find_nccl", &FindNccl, arg("file"),
        "The NCCL that collectives get, loaded for this: path, version, and trouble, which is why "
        "there is none. It may take as long as the limit for loading.");
}

py::dict StateOfGeneration() {
  const GenerationState state = ProcessRuntime::Get().generation();
  const char* status = "down";
  if (state.phase == GenerationState::Phase::kUp) status = "up";
  if (state.phase == GenerationState::Phase::kBroken) status = "broken";
  py::dict said;
  said["generation"] = state.number;
  said["status"] = status;
  said["error"] = state.error.ok() ? "" : state.error.ToString();
  said["lost"] = state.lost;
  said["departed"] = state.departed;
  said["failed_here"] = state.failed_here;
  said["failed_elsewhere"] = state.failed_elsewhere;
  said["abandoned"] = ProcessRuntime::Get().abandoned();
  return said;
}

void DefineGenerations(py::module_& m) {
  using py::arg;
  m.def(
      "last_process_set", [] { return ProcessRuntime::Get().last_process_set(); },
      "The highest id that a process set has had in this process, 0 if there was none.");
  m.def(
      "abandon",
      [](const std::string& why, uint64_t generation) {
        ProcessRuntime::Get().Abandon(why, generation);
      },
      arg("why"), arg("generation") = 0, py::call_guard<py::gil_scoped_release>(),
      "Ends the generation of this number, 0 for the present one, at once: without a goodbye and "
      "without waiting. Its calls end with errors; init may follow. Does nothing if it is not up.");
  m.def(
      "generation_state", &StateOfGeneration,
      "How the present generation stands, or how the last one has ended: `generation`, its "
      "number, 0 before the first init; `status`, which is \"up\", \"broken\" (a rank was lost "
      "or has left, or the runtime failed, so that not all ranks can meet any more) or \"down\"; "
      "`error`, why it is broken or over, or \"\"; the ranks that were `lost` and those that have "
      "`departed`; how many steps have `failed_here`, and how many because they "
      "`failed_elsewhere` or ranks disagreed, without those that ended because a rank was gone; "
      "and how many `abandoned` generations have not ended yet.");
}

void DefineHops(py::module_& m) {
  m.def(
      "take_hops",
      [](bool go_on) {
        std::vector<Hop> hops;
        if (const auto runtime = Running()) hops = runtime->TakeHops(go_on);
        return py::bytes(reinterpret_cast<const char*>(hops.data()), hops.size() * sizeof(Hop));
      },
      py::arg("go_on"),
      "The messages of plans since the last call, as in ops/runtime/interfaces/hops.h; they are "
      "noted from the first call on, until one without `go_on`.");
}

}  // namespace
}  // namespace tfring

PYBIND11_MODULE(_core, m) {
  const std::string problem = tfring::CheckSingleRuntime();
  if (!problem.empty()) throw pybind11::import_error(problem);
  m.doc() = "The tfring runtime for Python: start, stop, and collectives on numpy arrays.";
  tfring::DefineCoreError(m);
  tfring::DefineLog(m);
  tfring::DefineLifecycle(m);
  tfring::DefineGenerations(m);
  tfring::DefineRecord(m);
  tfring::DefineHops(m);
  tfring::DefineFailures(m);
  tfring::DefineCollectives(m);
  tfring::DefineMembership(m);
}
