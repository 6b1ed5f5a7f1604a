#include "ops/bindings/collectives.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/bindings/handle.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/process/call_notes.h"
#include "ops/runtime/process/process_runtime.h"

namespace tfring {
namespace {

namespace py = pybind11;
using HandlePtr = std::unique_ptr<Handle>;
using Splits = std::optional<std::vector<int64_t>>;
using Output = Call::Output;
using Yields = Handle::Yields;

// Compares names, because bfloat16 is not a numpy type.
DataType DataTypeOf(const py::dtype& type, const std::string& tensor) {
  const std::string name = py::str(py::object(type.attr("name")));
  const bool native = py::cast<bool>(py::object(type.attr("isnative")));
  std::string known;
  for (int i = 0; i < kNumDataTypes; ++i) {
    const DataType dtype = static_cast<DataType>(i);
    if (native && name == DataTypeName(dtype)) return dtype;
    known += std::string(i == 0 ? "" : ", ") + DataTypeName(dtype);
  }
  throw py::type_error("tensor " + tensor + " has dtype " + name +
                       (native ? "" : " that is not in this machine's byte order") +
                       "; supported are " + known);
}

ReduceOp ReduceOpOf(int op) {
  if (op < 0 || op >= kNumReduceOps) {
    throw py::value_error("op must be 0 (Average) to 5 (Product), not " + std::to_string(op));
  }
  return static_cast<ReduceOp>(op);
}

// Returns the world rank; kNoRank before init, and then Enqueue refuses the call.
Rank OwnRank() {
  const Result<Topology> topology = ProcessRuntime::Get().topology();
  return topology.ok() ? topology->rank : kNoRank;
}

Request MakeRequest(CollectiveKind kind, const std::string& name, ProcessSetId process_set,
                    Rank root = 0) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.process_set = process_set;
  request.root = root;
  return request;
}

Request ReducingRequest(CollectiveKind kind, const std::string& name, int op, double prescale,
                        double postscale, int process_set, Rank root = 0) {
  Request request = MakeRequest(kind, name, process_set, root);
  request.op = ReduceOpOf(op);
  request.prescale = prescale;
  request.postscale = postscale;
  return request;
}

// Send and recv add both ranks to the name, so several pairs of ranks may use one name at a time.
Request PairRequest(const std::string& name, Rank source, Rank dest, int process_set) {
  Request request = MakeRequest(CollectiveKind::kSendRecv,
                                name + "." + std::to_string(source) + "to" + std::to_string(dest),
                                process_set, source);
  request.peer = dest;
  return request;
}

// `dtype` is the result's, None without a result. `data` is null without an input.
HandlePtr Start(Request request, py::object dtype, const void* data, int64_t bytes, Output output,
                Yields yields) {
  AddCallSite(&request);
  std::shared_ptr<Call> call;
  {
    py::gil_scoped_release release;
    call = Call::Start(std::move(request), output, data, bytes);
  }
  return std::make_unique<Handle>(std::move(call), std::move(dtype), yields);
}

HandlePtr StartWithArray(Request request, const py::object& value, Output output, Yields yields) {
  const py::array array = py::array::ensure(value, py::array::c_style);
  if (!array) throw py::error_already_set();
  request.dtype = DataTypeOf(array.dtype(), request.name);
  request.shapes.push_back(Shape(array.shape(), array.shape() + array.ndim()));
  return Start(std::move(request), array.dtype(), array.data(), array.nbytes(), output, yields);
}

HandlePtr StartWithoutArray(Request request, Yields yields) {
  return Start(std::move(request), py::none(), nullptr, 0, Output::kNone, yields);
}

HandlePtr Allreduce(const py::object& array, const std::string& name, int op, double prescale,
                    double postscale, int process_set) {
  return StartWithArray(
      ReducingRequest(CollectiveKind::kAllreduce, name, op, prescale, postscale, process_set),
      array, Output::kInPlace, Yields::kArray);
}

HandlePtr Reducescatter(const py::object& array, const std::string& name, int op, double prescale,
                        double postscale, int process_set) {
  return StartWithArray(
      ReducingRequest(CollectiveKind::kReducescatter, name, op, prescale, postscale, process_set),
      array, Output::kAllocated, Yields::kArray);
}

HandlePtr Reduce(const py::object& array, const std::string& name, Rank root, int op,
                 double prescale, double postscale, int process_set) {
  const bool receives = root == OwnRank();
  return StartWithArray(
      ReducingRequest(CollectiveKind::kReduce, name, op, prescale, postscale, process_set, root),
      array, receives ? Output::kInPlace : Output::kNone,
      receives ? Yields::kArray : Yields::kNothing);
}

HandlePtr Allgather(const py::object& array, const std::string& name, int process_set) {
  return StartWithArray(MakeRequest(CollectiveKind::kAllgather, name, process_set), array,
                        Output::kAllocated, Yields::kArray);
}

HandlePtr Gather(const py::object& array, const std::string& name, Rank root, int process_set) {
  return StartWithArray(MakeRequest(CollectiveKind::kGather, name, process_set, root), array,
                        Output::kAllocated, Yields::kArray);
}

HandlePtr Broadcast(const py::object& array, const std::string& name, Rank root, int process_set) {
  return StartWithArray(MakeRequest(CollectiveKind::kBroadcast, name, process_set, root), array,
                        Output::kInPlace, Yields::kArray);
}

HandlePtr Scatter(const py::object& array, const Splits& splits, const std::string& name, Rank root,
                  int process_set) {
  Request request = MakeRequest(CollectiveKind::kScatter, name, process_set, root);
  if (splits && root == OwnRank()) request.splits = *splits;
  return StartWithArray(std::move(request), array, Output::kAllocated, Yields::kArray);
}

HandlePtr Alltoall(const py::object& array, const Splits& splits, const std::string& name,
                   int process_set) {
  Request request = MakeRequest(CollectiveKind::kAlltoall, name, process_set);
  if (splits) request.splits = *splits;
  return StartWithArray(std::move(request), array, Output::kAllocated, Yields::kArrayAndValues);
}

HandlePtr Send(const py::object& array, const std::string& name, Rank dest, int process_set) {
  return StartWithArray(PairRequest(name, OwnRank(), dest, process_set), array, Output::kNone,
                        Yields::kNothing);
}

HandlePtr Recv(const py::object& dtype, const std::optional<Shape>& shape, const std::string& name,
               Rank source, int process_set) {
  const py::dtype type = py::dtype::from_args(dtype);
  Request request = PairRequest(name, source, OwnRank(), process_set);
  request.dtype = DataTypeOf(type, name);
  if (shape) request.shapes.push_back(*shape);
  return Start(std::move(request), type, nullptr, 0, Output::kAllocated, Yields::kArray);
}

HandlePtr Barrier(const std::string& name, int process_set) {
  return StartWithoutArray(MakeRequest(CollectiveKind::kBarrier, name, process_set),
                           Yields::kNothing);
}

HandlePtr Join(int process_set, const std::string& name) {
  return StartWithoutArray(MakeRequest(CollectiveKind::kJoin, name, process_set), Yields::kNumber);
}

HandlePtr AddProcessSet(std::vector<int64_t> ranks, const std::string& name) {
  Request request = MakeRequest(CollectiveKind::kAddProcessSet, name, kGlobalProcessSet);
  std::sort(ranks.begin(), ranks.end());
  request.set_ranks.assign(ranks.begin(), ranks.end());
  if (!ranks.empty() && ranks.back() > std::numeric_limits<Rank>::max()) {
    // The other ranks must get an error as well, so the request carries it; it is not thrown here.
    request.refusal = "there is no rank " + std::to_string(ranks.back());
  }
  return StartWithoutArray(std::move(request), Yields::kNumber);
}

HandlePtr RemoveProcessSet(int id, const std::string& name) {
  Request request = MakeRequest(CollectiveKind::kRemoveProcessSet, name, kGlobalProcessSet);
  request.removed_set = id;
  return StartWithoutArray(std::move(request), Yields::kNothing);
}

// Defines a Python function that starts the collective and waits for its result.
template <typename... Arguments, typename... Extra>
void Define(py::module_& m, const char* name, HandlePtr (*start)(Arguments...), const char* doc,
            const Extra&... extra) {
  m.def(
      name,
      [start](Arguments... arguments) {
        return start(std::forward<Arguments>(arguments)...)->Wait();
      },
      doc, extra...);
}

void DefineReductions(py::module_& m) {
  using py::arg;
  Define(m, "allreduce", &Allreduce, "Returns the reduction over all ranks.", arg("array"),
         py::kw_only(), arg("name"), arg("op"), arg("prescale") = 1.0, arg("postscale") = 1.0,
         arg("process_set") = 0);
  m.def("allreduce_async", &Allreduce, "Starts an allreduce; does not wait for other ranks.",
        arg("array"), py::kw_only(), arg("name"), arg("op"), arg("prescale") = 1.0,
        arg("postscale") = 1.0, arg("process_set") = 0);
  Define(m, "reducescatter", &Reducescatter,
         "Returns this rank's rows of the reduction over all ranks.", arg("array"), py::kw_only(),
         arg("name"), arg("op"), arg("prescale") = 1.0, arg("postscale") = 1.0,
         arg("process_set") = 0);
  Define(m, "reduce", &Reduce, "Returns the reduction over all ranks on `root`, None elsewhere.",
         arg("array"), py::kw_only(), arg("name"), arg("root"), arg("op"), arg("prescale") = 1.0,
         arg("postscale") = 1.0, arg("process_set") = 0);
}

void DefineMoves(py::module_& m) {
  using py::arg;
  Define(m, "allgather", &Allgather, "Returns the rows of all ranks.", arg("array"), py::kw_only(),
         arg("name"), arg("process_set") = 0);
  Define(m, "gather", &Gather, "Returns the rows of all ranks on `root`, no rows elsewhere.",
         arg("array"), py::kw_only(), arg("name"), arg("root"), arg("process_set") = 0);
  Define(m, "broadcast", &Broadcast, "Returns the array that `root` passes.", arg("array"),
         py::kw_only(), arg("name"), arg("root"), arg("process_set") = 0);
  Define(m, "scatter", &Scatter,
         "Returns this rank's part of the rows that `root` passes, cut by its `splits`; the "
         "other ranks' arrays only give dtype and trailing dimensions.",
         arg("array"), arg("splits") = py::none(), py::kw_only(), arg("name"), arg("root"),
         arg("process_set") = 0);
  Define(m, "alltoall", &Alltoall,
         "Sends splits[i] rows to rank i; returns (rows received, how many from each rank).",
         arg("array"), arg("splits") = py::none(), py::kw_only(), arg("name"),
         arg("process_set") = 0);
  Define(m, "send", &Send, "Sends an array to rank `dest`, which calls recv.", arg("array"),
         py::kw_only(), arg("name"), arg("dest"), arg("process_set") = 0);
  Define(m, "recv", &Recv,
         "Returns the array that rank `source` sends; `shape` may be None, and may have dimensions "
         "of -1.",
         arg("dtype"), arg("shape") = py::none(), py::kw_only(), arg("name"), arg("source"),
         arg("process_set") = 0);
}

void DefineMembership(py::module_& m) {
  using py::arg;
  Define(m, "barrier", &Barrier, "Waits until all ranks have called it.", py::kw_only(),
         arg("name"), arg("process_set") = 0);
  Define(m, "join", &Join,
         "Takes no part in collectives until all ranks have joined; returns the last to join.",
         arg("process_set") = 0, py::kw_only(), arg("name") = "tfring.join");
  Define(m, "add_process_set", &AddProcessSet,
         "Adds a process set and returns its id; all ranks call it with the same ranks.",
         arg("ranks"), py::kw_only(), arg("name") = "tfring.add_process_set");
  Define(m, "remove_process_set", &RemoveProcessSet,
         "Removes a process set; all ranks call it with the same id.", arg("process_set"),
         py::kw_only(), arg("name") = "tfring.remove_process_set");
}

}  // namespace

void DefineCollectives(py::module_& m) {
  py::class_<Handle>(m, "Handle")
      .def("wait", &Handle::Wait, "Returns the result; raises CoreError.");
  m.def(
      "set_call_site",
      [](std::string line, bool unnamed) { SetCallSite({std::move(line), unnamed}); },
      py::arg("line"), py::arg("unnamed"), "Says where the next call of this thread is made.");
  DefineReductions(m);
  DefineMoves(m);
  DefineMembership(m);
}

}  // namespace tfring
