#ifndef TFRING_TESTS_CC_MEMBERSHIP_SMALL_JOB_H_
#define TFRING_TESTS_CC_MEMBERSHIP_SMALL_JOB_H_

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/membership/coordinator.h"
#include "ops/runtime/membership/worker.h"

namespace tfring::membership {

// A Coordinator with workers that do at once what it says, in a time that a test moves on. What
// they do not do by themselves, a test makes them do.
class SmallJob {
 public:
  struct Worker {
    Report report;
    bool silent = false;  // says nothing
    bool deaf = false;    // obeys nothing
    int excluded = 0;
    std::optional<int> exit;
  };

  explicit SmallJob(CoordinatorOptions options) : coordinator(options) {}

  // A process that somebody started by hand is ready. Slots of its host are given in order.
  void Join(WorkerId id, const std::string& host) {
    Worker& worker = workers[id];
    worker.report.worker = id;
    worker.report.state = WorkerState::kWaiting;
    worker.report.host = host;
    worker.report.slot = slots_[host]++;
    Say(id);
  }
  void Say(WorkerId id) {
    Report& report = workers.at(id).report;
    ++report.sequence;
    report.sent_at = now;
    CoordinatorEvents events;
    events.reports.push_back(report);
    Step(std::move(events));
  }
  void End(WorkerId id, int exit_code, const std::string& cause = "") {
    workers.at(id).silent = workers.at(id).deaf = true;
    CoordinatorEvents events;
    events.ends.push_back({id, exit_code, cause});
    Step(std::move(events));
  }
  // Its connection ends, and nobody tells of its process.
  void CutOff(WorkerId id) {
    workers.at(id).silent = workers.at(id).deaf = true;
    CoordinatorEvents events;
    events.cut_off.push_back(id);
    Step(std::move(events));
  }
  void SetHosts(std::vector<HostSlots> hosts) {
    CoordinatorEvents events;
    events.hosts = std::move(hosts);
    Step(std::move(events));
  }
  // The worker stops; without `boundary` or `done` because of a failure.
  void Stop(WorkerId id, bool boundary = false, bool done = false, WorkerId suspect = kNobody) {
    Report& report = workers.at(id).report;
    report.state = WorkerState::kBroken;
    report.boundary = boundary;
    report.done = done;
    report.suspect = suspect;
    Say(id);
  }
  // All members make a commit.
  void Commit() {
    for (const Member& member : coordinator.record().members) {
      Report& report = workers.at(member.worker).report;
      report.position = {report.position.commit + 1, ++report.step};
    }
  }
  // Signs of life and looks at the time each 100 ms.
  void Pass(Duration duration, bool commits = false) {
    for (const TimePoint end = now + duration; now < end;) {
      now += 100 * kMillisecond;
      if (commits) Commit();
      for (auto& [id, worker] : workers) {
        if (!worker.silent) Say(id);
      }
      Step({});
    }
  }

  int Said(CommandKind kind, WorkerId to) const {
    int count = 0;
    for (const auto& [worker, command] : said) count += worker == to && command.kind == kind;
    return count;
  }
  // The generation that the last answer lets this worker publish for.
  Generation LastAnswer(WorkerId to) const {
    Generation generation = 0;
    for (const auto& [worker, command] : said) {
      if (worker == to && command.kind == CommandKind::kAnswer) generation = command.generation;
    }
    return generation;
  }
  std::vector<WorkerId> Members() const {
    std::vector<WorkerId> members;
    for (const Member& member : coordinator.record().members) members.push_back(member.worker);
    return members;
  }
  bool Noted(const std::string& text) const {
    return std::find(notes.begin(), notes.end(), text) != notes.end();
  }
  Generation generation() const { return coordinator.record().generation; }
  bool Runs(Generation generation) const {
    return coordinator.phase() == Phase::kRunning && this->generation() == generation;
  }

  Coordinator coordinator;
  TimePoint now = 1000 * kSecond;
  std::map<WorkerId, Worker> workers;
  std::vector<std::pair<WorkerId, Command>> said;
  std::vector<CoordinatorEffects::Start> starts;
  std::vector<WorkerId> kills;
  std::vector<std::string> notes;
  std::optional<CoordinatorEffects::End> end;

 private:
  void Step(CoordinatorEvents events) {
    events.random = 1000 + said.size();
    CoordinatorEffects effects = coordinator.Step(now, std::move(events));
    starts.insert(starts.end(), effects.starts.begin(), effects.starts.end());
    kills.insert(kills.end(), effects.kills.begin(), effects.kills.end());
    notes.insert(notes.end(), effects.notes.begin(), effects.notes.end());
    if (effects.end) end = effects.end;
    said.insert(said.end(), effects.commands.begin(), effects.commands.end());
    for (const auto& [id, command] : effects.commands) {
      const auto found = workers.find(id);
      if (found == workers.end() || found->second.deaf) continue;
      if (Obey(command, &found->second)) Say(id);
    }
  }
  // True if the worker has something to say.
  static bool Obey(const Command& command, Worker* worker) {
    Report& report = worker->report;
    const bool stopped =
        report.state == WorkerState::kWaiting || report.state == WorkerState::kBroken;
    switch (command.kind) {
      case CommandKind::kPropose:
        if (!stopped || command.record.generation <= report.generation) return false;
        report.state = WorkerState::kMesh;
        report.generation = command.record.generation;
        report.position = command.record.position;
        report.step = report.position.step;
        report.boundary = report.done = report.announced = false;
        report.suspect = kNobody;
        return !worker->silent;
      case CommandKind::kGo:
        report.state = WorkerState::kRunning;
        return false;
      case CommandKind::kEnd:
        if (stopped || command.generation != report.generation) return false;
        report.state = WorkerState::kBroken;
        return !worker->silent;
      case CommandKind::kExcluded:
        ++worker->excluded;
        worker->silent = true;
        return false;
      case CommandKind::kExit:
        worker->exit = command.exit_code;
        worker->silent = true;
        return false;
      case CommandKind::kChangePending:
      case CommandKind::kAnswer:
        return false;
    }
    return false;
  }

  std::map<std::string, int32_t> slots_;
};

inline CoordinatorOptions JobOf(int np, int max_np = 0) {
  CoordinatorOptions options;
  options.np = np;
  options.max_np = max_np == 0 ? np : max_np;
  return options;
}

// Workers 1 to `count` on one host, which train in generation 1; by hand or by order.
inline SmallJob RunningJob(CoordinatorOptions options, int count, bool by_order = false) {
  SmallJob job(std::move(options));
  if (by_order) job.SetHosts({{"a", count}});
  for (int id = 1; id <= count; ++id) job.Join(static_cast<WorkerId>(id), "a");
  job.Pass(kSecond, true);
  return job;
}

}  // namespace tfring::membership

#endif  // TFRING_TESTS_CC_MEMBERSHIP_SMALL_JOB_H_
