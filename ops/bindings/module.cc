#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/bindings/call.h"
#include "ops/bindings/errors.h"
#include "ops/bindings/single_runtime.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/engine/process_runtime.h"

namespace tfring {
namespace {

namespace py = pybind11;
using Clock = std::chrono::steady_clock;

// A waiting call looks for Ctrl-C this often.
constexpr std::chrono::milliseconds kWaitSlice{50};

Topology RequireTopology() {
  Result<Topology> topology = ProcessRuntime::Get().topology();
  RaiseIfError(topology.status());
  return *topology;
}

// By name, because bfloat16 is no type of numpy's own.
DataType DataTypeOf(const py::array& array, const std::string& tensor) {
  const std::string name = py::str(py::object(array.dtype().attr("name")));
  const bool native = py::cast<bool>(py::object(array.dtype().attr("isnative")));
  std::string known;
  for (int i = 0; i < kNumDataTypes; ++i) {
    const DataType dtype = static_cast<DataType>(i);
    if (native && name == DataTypeName(dtype)) return dtype;
    known += std::string(i == 0 ? "" : ", ") + DataTypeName(dtype);
  }
  throw py::type_error("tensor " + tensor + " has dtype " + name +
                       (native ? "" : " in foreign byte order") + "; supported are " + known);
}

// A collective on its way, as Python sees it. Used under the GIL only.
class Handle {
 public:
  Handle(std::shared_ptr<Call> call, py::object dtype)
      : call_(std::move(call)), dtype_(std::move(dtype)) {}

  bool Done() {
    py::gil_scoped_release release;
    return call_->WaitFor(std::chrono::milliseconds(0));
  }

  // The result, or None for a barrier. Releases the GIL; Ctrl-C raises and leaves the collective
  // running on its own copies.
  py::object Wait(std::optional<double> timeout) {
    const Clock::time_point start = Clock::now();
    while (true) {
      bool finished;
      {
        py::gil_scoped_release release;
        finished = call_->WaitFor(kWaitSlice);
      }
      if (finished) break;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (timeout && Clock::now() - start >= std::chrono::duration<double>(*timeout)) {
        PyErr_SetString(PyExc_TimeoutError, "the collective has not ended yet");
        throw py::error_already_set();
      }
    }
    RaiseIfError(call_->status());
    if (!result_ && !dtype_.is_none()) result_ = TakeArray();
    return result_ ? result_ : py::none();
  }

 private:
  py::object TakeArray() {
    Memory memory = call_->TakeResult();
    void* data = memory.get();
    py::capsule owner(memory.release(), [](void* pointer) { std::free(pointer); });
    const Shape& shape = call_->shape();
    return py::array(py::reinterpret_borrow<py::dtype>(dtype_),
                     std::vector<py::ssize_t>(shape.begin(), shape.end()), data, owner);
  }

  std::shared_ptr<Call> call_;
  py::object dtype_;
  py::object result_;
};

std::unique_ptr<Handle> StartCall(Request request, const py::object& value) {
  const py::array array = py::array::ensure(value, py::array::c_style);
  if (!array) throw py::error_already_set();
  request.dtype = DataTypeOf(array, request.name);
  request.shapes.push_back(Shape(array.shape(), array.shape() + array.ndim()));
  const void* data = array.data();
  const int64_t bytes = array.nbytes();
  std::shared_ptr<Call> call;
  {
    py::gil_scoped_release release;
    call = Call::Start(std::move(request), data, bytes);
  }
  return std::make_unique<Handle>(std::move(call), array.dtype());
}

ReduceOp ReduceOpOf(int op) {
  if (op < 0 || op >= kNumReduceOps) {
    throw py::value_error("op must be 0 (Average) to 5 (Product), not " + std::to_string(op));
  }
  return static_cast<ReduceOp>(op);
}

std::unique_ptr<Handle> Allreduce(const py::object& array, const std::string& name, int op,
                                  double prescale, double postscale, int process_set) {
  Request request;
  request.name = name;
  request.kind = CollectiveKind::kAllreduce;
  request.op = ReduceOpOf(op);
  request.prescale = prescale;
  request.postscale = postscale;
  request.process_set = process_set;
  return StartCall(std::move(request), array);
}

std::unique_ptr<Handle> Allgather(const py::object& array, const std::string& name,
                                  int process_set) {
  Request request;
  request.name = name;
  request.kind = CollectiveKind::kAllgather;
  request.process_set = process_set;
  return StartCall(std::move(request), array);
}

std::unique_ptr<Handle> Broadcast(const py::object& array, const std::string& name, Rank root,
                                  int process_set) {
  Request request;
  request.name = name;
  request.kind = CollectiveKind::kBroadcast;
  request.root = root;
  request.process_set = process_set;
  return StartCall(std::move(request), array);
}

std::unique_ptr<Handle> Barrier(const std::string& name, int process_set) {
  Request request;
  request.name = name;
  request.kind = CollectiveKind::kBarrier;
  request.dtype = DataType::kUint8;
  request.process_set = process_set;
  std::shared_ptr<Call> call;
  {
    py::gil_scoped_release release;
    call = Call::Start(std::move(request), nullptr, 0);
  }
  return std::make_unique<Handle>(std::move(call), py::none());
}

void Init(int rank, int size, int local_rank, int local_size, int cross_rank, int cross_size,
          std::vector<std::string> hosts, std::map<Rank, int> control_fds,
          std::map<Rank, int> data_fds, std::map<Rank, int64_t> local_pids,
          std::map<std::string, std::string> config) {
  InitOptions options;
  options.topology = {rank, size, local_rank, local_size, cross_rank, cross_size};
  options.hosts = std::move(hosts);
  options.control_fds = std::move(control_fds);
  options.data_fds = std::move(data_fds);
  options.local_pids = std::move(local_pids);
  options.config = std::move(config);
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
  return info;
}

void DefineLifecycle(py::module_& m) {
  using py::arg;
  m.def("init", &Init, py::kw_only(), arg("rank"), arg("size"), arg("local_rank"),
        arg("local_size"), arg("cross_rank"), arg("cross_size"), arg("hosts"), arg("control_fds"),
        arg("data_fds"), arg("local_pids"), arg("config"),
        "Starts the runtime and takes over the descriptors.");
  // `done` callbacks may run Python (tf.py_function), so the GIL is free meanwhile.
  m.def(
      "shutdown", [] { ProcessRuntime::Get().Shutdown(); },
      py::call_guard<py::gil_scoped_release>(), "Stops the runtime; does nothing without one.");
  m.def("is_initialized", [] { return ProcessRuntime::Get().initialized(); });
  m.def("rank", [] { return RequireTopology().rank; });
  m.def("size", [] { return RequireTopology().size; });
  m.def("local_rank", [] { return RequireTopology().local_rank; });
  m.def("local_size", [] { return RequireTopology().local_size; });
  m.def("cross_rank", [] { return RequireTopology().cross_rank; });
  m.def("cross_size", [] { return RequireTopology().cross_size; });
  m.def(
      "counters", [] { return ProcessRuntime::Get().Counters(); },
      "Counters since init by name; empty without a runtime.");
  m.def("build_info", &BuildInfo, "How this binding was built and what it runs on.");
  m.def("describe_config", &DescribeConfig, "Every setting with its default and meaning.");
}

py::object WaitFor(std::unique_ptr<Handle> handle) { return handle->Wait(std::nullopt); }

void DefineCollectives(py::module_& m) {
  using py::arg;
  py::class_<Handle>(m, "Handle")
      .def("wait", &Handle::Wait, arg("timeout") = py::none(),
           "The result; raises CoreError, or TimeoutError after `timeout` seconds.")
      .def("done", &Handle::Done, "True when the collective has ended.");
  m.def("allreduce_async", &Allreduce, arg("array"), py::kw_only(), arg("name"), arg("op"),
        arg("prescale") = 1.0, arg("postscale") = 1.0, arg("process_set") = 0);
  m.def("allgather_async", &Allgather, arg("array"), py::kw_only(), arg("name"),
        arg("process_set") = 0);
  m.def("broadcast_async", &Broadcast, arg("array"), py::kw_only(), arg("name"), arg("root"),
        arg("process_set") = 0);
  m.def("barrier_async", &Barrier, py::kw_only(), arg("name"), arg("process_set") = 0);
  m.def(
      "allreduce",
      [](const py::object& array, const std::string& name, int op, double prescale,
         double postscale, int process_set) {
        return WaitFor(Allreduce(array, name, op, prescale, postscale, process_set));
      },
      arg("array"), py::kw_only(), arg("name"), arg("op"), arg("prescale") = 1.0,
      arg("postscale") = 1.0, arg("process_set") = 0);
  m.def(
      "allgather",
      [](const py::object& array, const std::string& name, int process_set) {
        return WaitFor(Allgather(array, name, process_set));
      },
      arg("array"), py::kw_only(), arg("name"), arg("process_set") = 0);
  m.def(
      "broadcast",
      [](const py::object& array, const std::string& name, Rank root, int process_set) {
        return WaitFor(Broadcast(array, name, root, process_set));
      },
      arg("array"), py::kw_only(), arg("name"), arg("root"), arg("process_set") = 0);
  m.def(
      "barrier",
      [](const std::string& name, int process_set) { WaitFor(Barrier(name, process_set)); },
      py::kw_only(), arg("name"), arg("process_set") = 0);
}

}  // namespace
}  // namespace tfring

PYBIND11_MODULE(_core, m) {
  const std::string problem = tfring::CheckSingleRuntime();
  if (!problem.empty()) throw pybind11::import_error(problem);
  m.doc() = "The tfring runtime for Python: start, stop, and collectives on numpy arrays.";
  tfring::DefineCoreError(m);
  tfring::DefineLifecycle(m);
  tfring::DefineCollectives(m);
}
