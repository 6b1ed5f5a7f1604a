#include "ops/bindings/collectives.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/bindings/handle.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/process/process_runtime.h"

namespace tfring {
namespace {

namespace py = pybind11;
using HandlePtr = std::unique_ptr<Handle>;
using Splits = std::optional<std::vector<int64_t>>;
using Output = Call::Output;
using Yields = Handle::Yields;

// By name, because bfloat16 is no type of numpy's own.
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
                       (native ? "" : " in foreign byte order") + "; supported are " + known);
}

ReduceOp ReduceOpOf(int op) {
  if (op < 0 || op >= kNumReduceOps) {
    throw py::value_error("op must be 0 (Average) to 5 (Product), not " + std::to_string(op));
  }
  return static_cast<ReduceOp>(op);
}

// kNoRank before init: Enqueue refuses the call then.
Rank OwnRank() {
  const Result<Topology> topology = ProcessRuntime::Get().topology();
  return topology.ok() ? topology->rank : kNoRank;
}

Request MakeRequest(CollectiveKind kind, const std::string& name, ProcessSetId process_set) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.dtype = DataType::kUint8;
  request.process_set = process_set;
  return request;
}

HandlePtr StartCall(Request request, const py::object& value, Output output, Yields yields) {
  const py::array array = py::array::ensure(value, py::array::c_style);
  if (!array) throw py::error_already_set();
  request.dtype = DataTypeOf(array.dtype(), request.name);
  request.shapes.push_back(Shape(array.shape(), array.shape() + array.ndim()));
  const void* data = array.data();
  const int64_t bytes = array.nbytes();
  std::shared_ptr<Call> call;
  {
    py::gil_scoped_release release;
    call = Call::Start(std::move(request), output, data, bytes);
  }
  return std::make_unique<Handle>(std::move(call), array.dtype(), yields);
}

HandlePtr StartWithoutInput(Request request, py::object dtype, Output output, Yields yields) {
  std::shared_ptr<Call> call;
  {
    py::gil_scoped_release release;
    call = Call::Start(std::move(request), output, nullptr, 0);
  }
  return std::make_unique<Handle>(std::move(call), std::move(dtype), yields);
}

Request ReducingRequest(CollectiveKind kind, const std::string& name, int op, double prescale,
                        double postscale, int process_set) {
  Request request = MakeRequest(kind, name, process_set);
  request.op = ReduceOpOf(op);
  request.prescale = prescale;
  request.postscale = postscale;
  return request;
}

HandlePtr Allreduce(const py::object& array, const std::string& name, int op, double prescale,
                    double postscale, int process_set) {
  return StartCall(
      ReducingRequest(CollectiveKind::kAllreduce, name, op, prescale, postscale, process_set),
      array, Output::kInPlace, Yields::kArray);
}

HandlePtr Reducescatter(const py::object& array, const std::string& name, int op, double prescale,
                        double postscale, int process_set) {
  return StartCall(
      ReducingRequest(CollectiveKind::kReducescatter, name, op, prescale, postscale, process_set),
      array, Output::kAllocated, Yields::kArray);
}

HandlePtr Reduce(const py::object& array, const std::string& name, Rank root, int op,
                 double prescale, double postscale, int process_set) {
  Request request =
      ReducingRequest(CollectiveKind::kReduce, name, op, prescale, postscale, process_set);
  request.root = root;
  const bool receives = root == OwnRank();
  return StartCall(std::move(request), array, receives ? Output::kInPlace : Output::kNone,
                   receives ? Yields::kArray : Yields::kNothing);
}

HandlePtr Allgather(const py::object& array, const std::string& name, int process_set) {
  return StartCall(MakeRequest(CollectiveKind::kAllgather, name, process_set), array,
                   Output::kAllocated, Yields::kArray);
}

HandlePtr Gather(const py::object& array, const std::string& name, Rank root, int process_set) {
  Request request = MakeRequest(CollectiveKind::kGather, name, process_set);
  request.root = root;
  return StartCall(std::move(request), array, Output::kAllocated, Yields::kArray);
}

HandlePtr Broadcast(const py::object& array, const std::string& name, Rank root, int process_set) {
  Request request = MakeRequest(CollectiveKind::kBroadcast, name, process_set);
  request.root = root;
  return StartCall(std::move(request), array, Output::kInPlace, Yields::kArray);
}

HandlePtr Scatter(const py::object& array, const Splits& splits, const std::string& name, Rank root,
                  int process_set) {
  Request request = MakeRequest(CollectiveKind::kScatter, name, process_set);
  request.root = root;
  if (splits && root == OwnRank()) request.splits = *splits;
  return StartCall(std::move(request), array, Output::kAllocated, Yields::kArray);
}

HandlePtr Alltoall(const py::object& array, const Splits& splits, const std::string& name,
                   int process_set) {
  Request request = MakeRequest(CollectiveKind::kAlltoall, name, process_set);
  if (splits) request.splits = *splits;
  return StartCall(std::move(request), array, Output::kAllocated, Yields::kArrayAndValues);
}

// Both ends ask under one name, whatever else goes between other ranks under the same.
Request PairRequest(const std::string& name, Rank source, Rank dest, int process_set) {
  Request request =
      MakeRequest(CollectiveKind::kSendRecv,
                  name + "." + std::to_string(source) + "to" + std::to_string(dest), process_set);
  request.root = source;
  request.peer = dest;
  return request;
}

HandlePtr Send(const py::object& array, const std::string& name, Rank dest, int process_set) {
  return StartCall(PairRequest(name, OwnRank(), dest, process_set), array, Output::kNone,
                   Yields::kNothing);
}

HandlePtr Recv(const py::object& dtype, const std::optional<Shape>& shape, const std::string& name,
               Rank source, int process_set) {
  const py::dtype type = py::dtype::from_args(dtype);
  Request request = PairRequest(name, source, OwnRank(), process_set);
  request.dtype = DataTypeOf(type, name);
  if (shape) request.shapes.push_back(*shape);
  return StartWithoutInput(std::move(request), type, Output::kAllocated, Yields::kArray);
}

HandlePtr Barrier(const std::string& name, int process_set) {
  return StartWithoutInput(MakeRequest(CollectiveKind::kBarrier, name, process_set), py::none(),
                           Output::kNone, Yields::kNothing);
}

HandlePtr Join(int process_set, const std::string& name) {
  return StartWithoutInput(MakeRequest(CollectiveKind::kJoin, name, process_set), py::none(),
                           Output::kNone, Yields::kNumber);
}

HandlePtr AddProcessSet(std::vector<Rank> ranks, const std::string& name) {
  Request request = MakeRequest(CollectiveKind::kAddProcessSet, name, kGlobalProcessSet);
  std::sort(ranks.begin(), ranks.end());
  request.set_ranks = std::move(ranks);
  return StartWithoutInput(std::move(request), py::none(), Output::kNone, Yields::kNumber);
}

HandlePtr RemoveProcessSet(int id, const std::string& name) {
  Request request = MakeRequest(CollectiveKind::kRemoveProcessSet, name, kGlobalProcessSet);
  request.removed_set = id;
  return StartWithoutInput(std::move(request), py::none(), Output::kNone, Yields::kNothing);
}

// Adds `start` as NAME_async, and as NAME with a wait behind it.
template <typename... Arguments, typename... Extra>
void DefineBoth(py::module_& m, const std::string& name, HandlePtr (*start)(Arguments...),
                const char* doc, const Extra&... extra) {
  m.def((name + "_async").c_str(), start, doc, extra...);
  m.def(
      name.c_str(),
      [start](Arguments... arguments) {
        return start(std::forward<Arguments>(arguments)...)->Wait(std::nullopt);
      },
      doc, extra...);
}

void DefineReductions(py::module_& m) {
  using py::arg;
  DefineBoth(m, "allreduce", &Allreduce, "The reduction over all ranks.", arg("array"),
             py::kw_only(), arg("name"), arg("op"), arg("prescale") = 1.0, arg("postscale") = 1.0,
             arg("process_set") = 0);
  DefineBoth(m, "reducescatter", &Reducescatter, "Our rows of the reduction over all ranks.",
             arg("array"), py::kw_only(), arg("name"), arg("op"), arg("prescale") = 1.0,
             arg("postscale") = 1.0, arg("process_set") = 0);
  DefineBoth(m, "reduce", &Reduce, "The reduction over all ranks on `root`, None elsewhere.",
             arg("array"), py::kw_only(), arg("name"), arg("root"), arg("op"),
             arg("prescale") = 1.0, arg("postscale") = 1.0, arg("process_set") = 0);
}

void DefineMoves(py::module_& m) {
  using py::arg;
  DefineBoth(m, "allgather", &Allgather, "The rows of all ranks.", arg("array"), py::kw_only(),
             arg("name"), arg("process_set") = 0);
  DefineBoth(m, "gather", &Gather, "The rows of all ranks on `root`, no rows elsewhere.",
             arg("array"), py::kw_only(), arg("name"), arg("root"), arg("process_set") = 0);
  DefineBoth(m, "broadcast", &Broadcast, "The array of `root`.", arg("array"), py::kw_only(),
             arg("name"), arg("root"), arg("process_set") = 0);
  DefineBoth(m, "scatter", &Scatter,
             "Our rows of the array of `root`, which decides about `splits`; the arrays of the "
             "others only say dtype and trailing dimensions.",
             arg("array"), arg("splits") = py::none(), py::kw_only(), arg("name"), arg("root"),
             arg("process_set") = 0);
  DefineBoth(m, "alltoall", &Alltoall,
             "Sends `splits` rows to each rank: (the rows for us, how many came from each rank).",
             arg("array"), arg("splits") = py::none(), py::kw_only(), arg("name"),
             arg("process_set") = 0);
  DefineBoth(m, "send", &Send, "Sends an array to `dest`, which calls recv.", arg("array"),
             py::kw_only(), arg("name"), arg("dest"), arg("process_set") = 0);
  DefineBoth(m, "recv", &Recv,
             "The array that `source` sends; `shape` may be left out or have dimensions of -1.",
             arg("dtype"), arg("shape") = py::none(), py::kw_only(), arg("name"), arg("source"),
             arg("process_set") = 0);
}

void DefineMembership(py::module_& m) {
  using py::arg;
  DefineBoth(m, "barrier", &Barrier, "Waits for all ranks.", py::kw_only(), arg("name"),
             arg("process_set") = 0);
  DefineBoth(m, "join", &Join,
             "Takes no part until all ranks have joined: the rank that joined last.",
             arg("process_set") = 0, py::kw_only(), arg("name") = "tfring.join");
  DefineBoth(m, "add_process_set", &AddProcessSet,
             "Registers a process set; all ranks call it with the same ranks: its id.",
             arg("ranks"), py::kw_only(), arg("name") = "tfring.add_process_set");
  DefineBoth(m, "remove_process_set", &RemoveProcessSet,
             "Forgets a process set; all ranks call it with the same id.", arg("process_set"),
             py::kw_only(), arg("name") = "tfring.remove_process_set");
}

}  // namespace

void DefineCollectives(py::module_& m) {
  py::class_<Handle>(m, "Handle")
      .def("wait", &Handle::Wait, py::arg("timeout") = py::none(),
           "The result; raises CoreError, or TimeoutError after `timeout` seconds.")
      .def("done", &Handle::Done, "True when the collective has ended.");
  DefineReductions(m);
  DefineMoves(m);
  DefineMembership(m);
}

}  // namespace tfring
