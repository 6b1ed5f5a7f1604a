#include "ops/bindings/membership.h"

#include <pybind11/stl.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/bindings/errors.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/membership/coordinator.h"
#include "ops/runtime/membership/hosts.h"
#include "ops/runtime/membership/messages.h"
#include "ops/runtime/membership/worker.h"

namespace tfring {

namespace py = pybind11;

namespace {

using membership::Command;
using membership::CommandKind;
using membership::Coordinator;
using membership::CoordinatorEffects;
using membership::CoordinatorEvents;
using membership::CoordinatorOptions;
using membership::Generation;
using membership::HostPolicy;
using membership::HostSlots;
using membership::LivingProcess;
using membership::Member;
using membership::Phase;
using membership::Position;
using membership::ProcessEnd;
using membership::Record;
using membership::Report;
using membership::Worker;
using membership::WorkerEffects;
using membership::WorkerEvents;
using membership::WorkerId;
using membership::WorkerOptions;
using membership::WorkerState;

// Returns the text as a str. Text from another process may hold invalid UTF-8, which is replaced.
py::str TextOf(const std::string& text) {
  PyObject* made =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(made);
}

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

void DefineWorkerOptions(py::module_& m) {
  py::class_<WorkerOptions>(m, "WorkerOptions")
      .def(py::init<>())
      .def_readwrite("worker", &WorkerOptions::worker)
      .def_readwrite("host", &WorkerOptions::host)
      .def_readwrite("slot", &WorkerOptions::slot)
      .def_readwrite("beat", &WorkerOptions::beat)
      .def_readwrite("lease", &WorkerOptions::lease)
      .def_readwrite("patience", &WorkerOptions::patience);
}

void DefineWorkerEvents(py::module_& m) {
  using py::arg;
  py::class_<WorkerEvents> events(m, "WorkerEvents");
  py::class_<WorkerEvents::Synced>(events, "Synced")
      .def(py::init([](Generation generation, Position position) {
             return WorkerEvents::Synced{generation, position};
           }),
           arg("generation"), arg("position"));
  py::class_<WorkerEvents::Failure>(events, "Failure")
      .def(py::init([](Generation generation, WorkerId suspect) {
             return WorkerEvents::Failure{generation, suspect};
           }),
           arg("generation"), arg("suspect") = membership::kNobody);
  py::class_<WorkerEvents::Stopped>(events, "Stopped")
      .def(py::init([](Generation generation, Position position, bool boundary, bool done) {
             return WorkerEvents::Stopped{generation, position, boundary, done};
           }),
           arg("generation"), arg("position"), arg("boundary") = false, arg("done") = false);
  events.def(py::init<>())
      .def_readwrite("commands", &WorkerEvents::commands)
      .def_readwrite("attached", &WorkerEvents::attached)
      .def_readwrite("ready", &WorkerEvents::ready)
      .def_readwrite("connected", &WorkerEvents::connected)
      .def_readwrite("synced", &WorkerEvents::synced)
      .def_readwrite("committed", &WorkerEvents::committed)
      .def_readwrite("step", &WorkerEvents::step)
      .def_readwrite("failed", &WorkerEvents::failed)
      .def_readwrite("stopped", &WorkerEvents::stopped)
      .def_readwrite("leave", &WorkerEvents::leave);
}

void DefineWorkerEffects(py::module_& m) {
  py::class_<WorkerEffects> effects(m, "WorkerEffects");
  py::class_<WorkerEffects::Exit>(effects, "Exit")
      .def_readonly("code", &WorkerEffects::Exit::code)
      .def_property_readonly("reason",
                             [](const WorkerEffects::Exit& exit) { return TextOf(exit.reason); });
  effects.def_readonly("abandon", &WorkerEffects::abandon)
      .def_readonly("connect", &WorkerEffects::connect)
      .def_readonly("sync", &WorkerEffects::sync)
      .def_readonly("announce_change", &WorkerEffects::announce_change)
      .def_readonly("reports", &WorkerEffects::reports)
      .def_readonly("exit", &WorkerEffects::exit);
}

void DefineWorker(py::module_& m) {
  using py::arg;
  DefineWorkerOptions(m);
  DefineWorkerEvents(m);
  DefineWorkerEffects(m);
  py::class_<Worker>(m, "Worker")
      .def(py::init<WorkerOptions>(), arg("options"))
      .def("step", &Worker::Step, arg("now"), arg("events"))
      .def("next_deadline", &Worker::next_deadline)
      .def("may_publish", &Worker::MayPublish, arg("now"))
      .def_property_readonly("state", &Worker::state)
      .def_property_readonly("generation", &Worker::generation)
      .def_property_readonly("record", [](const Worker& self) { return self.record(); });
}

void DefineCoordinatorOptions(py::module_& m) {
  using py::arg;
  py::class_<HostSlots>(m, "HostSlots")
      .def(py::init(
               [](std::string host, int32_t slots) { return HostSlots{std::move(host), slots}; }),
           arg("host"), arg("slots"))
      .def_readwrite("host", &HostSlots::host)
      .def_readwrite("slots", &HostSlots::slots);
  py::class_<HostPolicy>(m, "HostPolicy")
      .def(py::init<>())
      .def_readwrite("first_failure_bars", &HostPolicy::first_failure_bars)
      .def_readwrite("cooling_empties", &HostPolicy::cooling_empties)
      .def_readwrite("failures", &HostPolicy::failures)
      .def_readwrite("window", &HostPolicy::window)
      .def_readwrite("cool_first", &HostPolicy::cool_first)
      .def_readwrite("cool_most", &HostPolicy::cool_most);
  py::class_<CoordinatorOptions>(m, "CoordinatorOptions")
      .def(py::init<>())
      .def_readwrite("np", &CoordinatorOptions::np)
      .def_readwrite("min_np", &CoordinatorOptions::min_np)
      .def_readwrite("max_np", &CoordinatorOptions::max_np)
      .def_readwrite("spares", &CoordinatorOptions::spares)
      .def_readwrite("first_worker", &CoordinatorOptions::first_worker)
      .def_readwrite("start_wait", &CoordinatorOptions::start_wait)
      .def_readwrite("start_limit", &CoordinatorOptions::start_limit)
      .def_readwrite("lease", &CoordinatorOptions::lease)
      .def_readwrite("stop_limit", &CoordinatorOptions::stop_limit)
      .def_readwrite("connect_limit", &CoordinatorOptions::connect_limit)
      .def_readwrite("min_wait", &CoordinatorOptions::min_wait)
      .def_readwrite("rebuild_wait", &CoordinatorOptions::rebuild_wait)
      .def_readwrite("join_interval", &CoordinatorOptions::join_interval)
      .def_readwrite("reset_limit", &CoordinatorOptions::reset_limit)
      .def_readwrite("count_changes", &CoordinatorOptions::count_changes)
      .def_readwrite("hosts", &CoordinatorOptions::hosts);
}

void DefineCoordinatorEvents(py::module_& m) {
  using py::arg;
  py::class_<ProcessEnd>(m, "ProcessEnd")
      .def(py::init([](WorkerId worker, int exit_code, std::string cause) {
             return ProcessEnd{worker, exit_code, std::move(cause)};
           }),
           arg("worker"), arg("exit_code"), arg("cause") = "")
      .def_readonly("worker", &ProcessEnd::worker);
  py::class_<LivingProcess>(m, "LivingProcess")
      .def(py::init([](WorkerId worker, std::string host, int32_t slot) {
             return LivingProcess{worker, {std::move(host), slot}};
           }),
           arg("worker"), arg("host"), arg("slot"));
  py::class_<CoordinatorEvents>(m, "CoordinatorEvents")
      .def(py::init<>())
      .def_readwrite("hosts", &CoordinatorEvents::hosts)
      .def_readwrite("living", &CoordinatorEvents::living)
      .def_readwrite("last_worker", &CoordinatorEvents::last_worker)
      .def_readwrite("last_generation", &CoordinatorEvents::last_generation)
      .def_readwrite("ends", &CoordinatorEvents::ends)
      .def_readwrite("reports", &CoordinatorEvents::reports)
      .def_readwrite("cut_off", &CoordinatorEvents::cut_off)
      .def_readwrite("random", &CoordinatorEvents::random);
}

void DefineCoordinatorEffects(py::module_& m) {
  py::class_<CoordinatorEffects> effects(m, "CoordinatorEffects");
  py::class_<CoordinatorEffects::Start>(effects, "Start")
      .def_readonly("worker", &CoordinatorEffects::Start::worker)
      .def_property_readonly(
          "host", [](const CoordinatorEffects::Start& start) { return TextOf(start.place.first); })
      .def_property_readonly(
          "slot", [](const CoordinatorEffects::Start& start) { return start.place.second; });
  py::class_<CoordinatorEffects::End>(effects, "End")
      .def_readonly("code", &CoordinatorEffects::End::code)
      .def_property_readonly("reason",
                             [](const CoordinatorEffects::End& end) { return TextOf(end.reason); });
  effects.def_readonly("commands", &CoordinatorEffects::commands)
      .def_readonly("starts", &CoordinatorEffects::starts)
      .def_readonly("kills", &CoordinatorEffects::kills)
      .def_property_readonly("notes",
                             [](const CoordinatorEffects& self) {
                               std::vector<py::str> notes;
                               for (const std::string& note : self.notes) {
                                 notes.push_back(TextOf(note));
                               }
                               return notes;
                             })
      .def_readonly("end", &CoordinatorEffects::end);
}

void DefineCoordinator(py::module_& m) {
  using py::arg;
  DefineCoordinatorOptions(m);
  DefineCoordinatorEvents(m);
  DefineCoordinatorEffects(m);
  py::enum_<Phase>(m, "Phase")
      .value("gathering", Phase::kGathering)
      .value("forming", Phase::kForming)
      .value("running", Phase::kRunning)
      .value("over", Phase::kOver);
  py::class_<Coordinator>(m, "Coordinator")
      .def(py::init<CoordinatorOptions>(), arg("options"))
      .def("step", &Coordinator::Step, arg("now"), arg("events"))
      .def("next_deadline", &Coordinator::next_deadline)
      .def_property_readonly("phase", &Coordinator::phase)
      .def_property_readonly("record", [](const Coordinator& self) { return self.record(); });
}

void DefineMembershipMachines(py::module_& m) {
  m.attr("NEVER") = kNever;
  m.attr("NOBODY") = membership::kNobody;
  m.attr("EXIT_TRY_AGAIN") = membership::kExitTryAgain;
  DefineWorker(m);
  DefineCoordinator(m);
}

}  // namespace

void DefineMembership(py::module_& module) {
  py::module_ m = module.def_submodule(
      "membership",
      "Who is in a generation of an elastic job: the coordinator and the worker as state machines. "
      "Times are nanoseconds of CLOCK_MONOTONIC.");
  DefineMembershipMessages(m);
  DefineMembershipMachines(m);
}

}  // namespace tfring
