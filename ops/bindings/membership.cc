#include "ops/bindings/membership.h"

#include <pybind11/stl.h>

#include <string>
#include <string_view>
#include <utility>

#include "ops/bindings/errors.h"
#include "ops/runtime/membership/messages.h"

namespace tfring {

namespace py = pybind11;

py::str TextOf(const std::string& text) {
  PyObject* made =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(made);
}

namespace {

using membership::Command;
using membership::CommandKind;
using membership::Member;
using membership::Position;
using membership::Record;
using membership::Report;
using membership::WorkerState;

// A text field. A message of another process may hold any bytes in it.
template <typename Class, typename Owner>
void DefineText(Class* bound, const char* name, std::string Owner::* field) {
  bound->def_property(
      name, [field](const Owner& self) { return TextOf(self.*field); },
      [field](Owner& self, std::string text) { self.*field = std::move(text); });
}

void DefineRecords(py::module_& m) {
  using py::arg;
  py::class_<Position>(m, "Position", "How far a state is; the one with more commits is ahead.")
      .def(py::init([](int64_t commit, int64_t step) { return Position{commit, step}; }),
           arg("commit") = 0, arg("step") = 0)
      .def_readwrite("commit", &Position::commit)
      .def_readwrite("step", &Position::step)
      .def("__repr__", [](const Position& self) { return PositionText(self); });
  py::class_<Member> member(m, "Member");
  member.def(py::init<>())
      .def_readwrite("worker", &Member::worker)
      .def_readwrite("slot", &Member::slot);
  DefineText(&member, "host", &Member::host);
  py::class_<Record>(m, "Record", "A generation: rank r is members[r].")
      .def(py::init<>())
      .def_readwrite("generation", &Record::generation)
      .def_readwrite("nonce", &Record::nonce)
      .def_readwrite("members", &Record::members)
      .def_readwrite("root", &Record::root)
      .def_readwrite("position", &Record::position);
}

void DefineReport(py::module_& m) {
  py::enum_<WorkerState> states(m, "WorkerState");
  for (int i = 0; i < membership::kNumWorkerStates; ++i) {
    const auto state = static_cast<WorkerState>(i);
    states.value(WorkerStateName(state), state);
  }
  py::class_<Report> report(m, "Report");
  report.def(py::init<>())
      .def_readwrite("worker", &Report::worker)
      .def_readwrite("sequence", &Report::sequence)
      .def_readwrite("state", &Report::state)
      .def_readwrite("generation", &Report::generation)
      .def_readwrite("position", &Report::position)
      .def_readwrite("step", &Report::step)
      .def_readwrite("boundary", &Report::boundary)
      .def_readwrite("done", &Report::done)
      .def_readwrite("leaving", &Report::leaving)
      .def_readwrite("announced", &Report::announced)
      .def_readwrite("suspect", &Report::suspect)
      .def_readwrite("slot", &Report::slot);
  DefineText(&report, "host", &Report::host);
}

void DefineCommand(py::module_& m) {
  py::enum_<CommandKind>(m, "CommandKind")
      .value("answer", CommandKind::kAnswer)
      .value("propose", CommandKind::kPropose)
      .value("go", CommandKind::kGo)
      .value("end", CommandKind::kEnd)
      .value("change_pending", CommandKind::kChangePending)
      .value("excluded", CommandKind::kExcluded)
      .value("exit", CommandKind::kExit);
  py::class_<Command> command(m, "Command");
  command.def(py::init<>())
      .def_readwrite("kind", &Command::kind)
      .def_readwrite("generation", &Command::generation)
      .def_readwrite("sequence", &Command::sequence)
      .def_readwrite("record", &Command::record)
      .def_readwrite("exit_code", &Command::exit_code);
  DefineText(&command, "reason", &Command::reason);
}

template <typename Message>
Message Checked(Result<Message> message) {
  RaiseIfError(message.status());
  return *std::move(message);
}

}  // namespace

void DefineMembershipMessages(py::module_& m) {
  using py::arg;
  DefineRecords(m);
  DefineReport(m);
  DefineCommand(m);
  m.def(
      "encode_report", [](const Report& report) { return py::bytes(EncodeReport(report)); },
      arg("report"));
  m.def(
      "encode_command", [](const Command& command) { return py::bytes(EncodeCommand(command)); },
      arg("command"));
  m.def(
      "decode_report",
      [](const py::bytes& message) {
        return Checked(membership::DecodeReport(static_cast<std::string_view>(message)));
      },
      arg("message"), "CoreError for bytes that no encoder writes.");
  m.def(
      "decode_command",
      [](const py::bytes& message) {
        return Checked(membership::DecodeCommand(static_cast<std::string_view>(message)));
      },
      arg("message"), "CoreError for bytes that no encoder writes.");
}

void DefineMembership(py::module_& module) {
  py::module_ m = module.def_submodule(
      "membership",
      "Who is in a generation of an elastic job: the coordinator and the worker as state machines. "
      "Times are nanoseconds of CLOCK_MONOTONIC.");
  DefineMembershipMessages(m);
  DefineMembershipMachines(m);
}

}  // namespace tfring
