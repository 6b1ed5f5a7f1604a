#ifndef TFRING_TESTS_CC_PROTOCOL_ENGINE_FIXTURE_H_
#define TFRING_TESTS_CC_PROTOCOL_ENGINE_FIXTURE_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/protocol/engine/engine.h"
#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "tests/cc/protocol/requests.h"

namespace tfring::testing {

inline Config QuietConfig() {
  Config config;
  config.heartbeat_interval = 0;
  config.stall_warning = 0;
  return config;
}

// Engines of all ranks, and what their effects were so far. Frames wait until Deliver(). Time and
// completions are the test's own.
class Engines {
 public:
  explicit Engines(int size, const Config& config = QuietConfig()) : nodes_(size) {
    EngineOptions options;
    options.size = size;
    options.config = config;
    for (int rank = 0; rank < size; ++rank) options.hosts.push_back("h" + std::to_string(rank));
    if (size >= 3) options.process_sets = {{1, {0, 1}}, {2, {1, 2}}, {3, {0, 2}}};
    for (int rank = 0; rank < size; ++rank) {
      options.rank = rank;
      nodes_[rank].engine = std::make_unique<Engine>(options);
      Step(rank, {});
    }
  }

  void Step(Rank rank, EngineEvents events) {
    Node& node = nodes_[rank];
    EngineEffects effects = node.engine->Step(now, std::move(events));
    for (auto& [to, frame] : effects.frames) {
      node.sent.push_back({to, *DecodeFrame(frame)});
      if (mute.count(rank) == 0) frames_.push_back({rank, to, std::move(frame)});
    }
    for (PlanRun& run : effects.runs) node.runs.push_back(std::move(run));
    for (LockNews& news : effects.locks) node.locks.push_back(std::move(news));
    if (effects.abort) node.abort = effects.abort;
    if (effects.health != nullptr) node.health = *effects.health;
    for (auto& [id, status] : effects.results) {
      node.known_then[id] = node.health;
      doubled = doubled || !node.results.emplace(id, std::move(status)).second;
    }
    node.finished = effects.finished;
  }

  void Submit(Rank rank, CallId id, Request request) {
    const Status admitted =
        AdmitRequest(nodes_[rank].engine->process_sets(), rank, nullptr, &request);
    if (!admitted.ok()) {
      doubled = doubled || !nodes_[rank].results.emplace(id, admitted).second;
      return;
    }
    EngineEvents events;
    events.submissions.emplace_back(id, std::move(request));
    Step(rank, std::move(events));
  }
  void SubmitOnAll(CallId id, const std::string& name) {
    for (size_t rank = 0; rank < nodes_.size(); ++rank) Submit(rank, id, Allreduce(name));
    Deliver();
  }
  void Complete(Rank rank, uint64_t sequence, Status status = OkStatus(), Rank suspect = kNoRank) {
    Report(rank, {sequence, std::move(status), suspect});
  }
  void Report(Rank rank, Completion completion) {
    EngineEvents events;
    events.completions.push_back(std::move(completion));
    Step(rank, std::move(events));
  }
  void Lose(Rank rank, Rank peer, const std::string& reason = "connection closed") {
    EngineEvents events;
    events.control.push_back({ControlEvent::Kind::kPeerLost, peer, "", reason});
    Step(rank, std::move(events));
  }
  void Receive(Rank rank, Rank peer, std::string bytes) {
    EngineEvents events;
    events.control.push_back({ControlEvent::Kind::kFrame, peer, std::move(bytes), ""});
    Step(rank, std::move(events));
  }
  void Shutdown(Rank rank, const std::string& error = "") {
    EngineEvents events;
    events.shutdown = true;
    events.error = error;
    Step(rank, std::move(events));
  }
  void Deliver() {
    while (!frames_.empty()) {
      InFlight frame = std::move(frames_.front());
      frames_.pop_front();
      if (mute.count(frame.to) == 0) Receive(frame.to, frame.from, std::move(frame.bytes));
    }
  }
  // The same, but a rank sees all that has come for it in one step.
  void DeliverAtOnce() {
    std::map<Rank, EngineEvents> arrived;
    for (InFlight& frame : frames_) {
      arrived[frame.to].control.push_back(
          {ControlEvent::Kind::kFrame, frame.from, std::move(frame.bytes), ""});
    }
    frames_.clear();
    for (auto& [rank, events] : arrived) Step(rank, std::move(events));
  }
  // Moves time to `when` and lets `rank` act.
  void At(TimePoint when, Rank rank) {
    now = when;
    Step(rank, {});
  }

  // The result of a call, if it has one.
  std::optional<Status> Result(Rank rank, CallId id) const {
    auto it = nodes_[rank].results.find(id);
    if (it == nodes_[rank].results.end()) return std::nullopt;
    return it->second;
  }
  bool Ended(Rank rank, CallId id) const { return Result(rank, id).has_value(); }
  std::string Text(Rank rank, CallId id) const {
    std::optional<Status> status = Result(rank, id);
    return status ? status->ToString() : "(no result)";
  }
  StatusCode Code(Rank rank, CallId id) const {
    std::optional<Status> status = Result(rank, id);
    return status ? status->code() : StatusCode::kUnimplemented;
  }
  // Frames of this type that `from` sent to `to` so far.
  int Sent(Rank from, Rank to, FrameType type) const {
    int count = 0;
    for (const auto& [peer, frame] : nodes_[from].sent) count += peer == to && frame.type == type;
    return count;
  }
  // All ranks whose goodbyes `from` passed to `to`, in order, each followed by a space.
  std::string Goodbyes(Rank from, Rank to) const {
    std::string ranks;
    for (const auto& [peer, frame] : nodes_[from].sent) {
      if (peer != to) continue;
      for (const Departure& departure : frame.departures) {
        ranks += std::to_string(departure.rank) + " ";
      }
    }
    return ranks;
  }
  const std::vector<PlanRun>& runs(Rank rank) const { return nodes_[rank].runs; }
  const std::vector<LockNews>& locks(Rank rank) const { return nodes_[rank].locks; }
  uint64_t lock_rounds(Rank rank) const { return nodes_[rank].engine->lock_rounds(); }
  const std::optional<Status>& abort(Rank rank) const { return nodes_[rank].abort; }
  const GenerationHealth& health(Rank rank) const { return nodes_[rank].health; }
  // What the rank knew when the call ended.
  const GenerationHealth& KnownThen(Rank rank, CallId id) const {
    return nodes_[rank].known_then.at(id);
  }
  bool finished(Rank rank) const { return nodes_[rank].finished; }
  TimePoint deadline(Rank rank) const { return nodes_[rank].engine->next_deadline(); }
  size_t in_flight(Rank rank) const { return nodes_[rank].engine->in_flight(); }

  TimePoint now = 1000 * kSecond;
  std::set<Rank> mute;   // nothing goes to or comes from these
  bool doubled = false;  // a call ended twice

 private:
  struct Node {
    std::unique_ptr<Engine> engine;
    std::vector<std::pair<Rank, Frame>> sent;
    std::vector<PlanRun> runs;
    std::vector<LockNews> locks;
    std::map<CallId, Status> results;
    std::optional<Status> abort;
    GenerationHealth health;
    std::map<CallId, GenerationHealth> known_then;
    bool finished = false;
  };
  struct InFlight {
    Rank from;
    Rank to;
    std::string bytes;
  };
  std::vector<Node> nodes_;
  std::deque<InFlight> frames_;
};

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_PROTOCOL_ENGINE_FIXTURE_H_
