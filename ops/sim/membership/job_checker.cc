#include "ops/sim/membership/job_checker.h"

#include <algorithm>

namespace tfring::sim {

using membership::Generation;
using membership::Position;
using membership::PositionText;
using membership::Record;
using membership::WorkerId;

namespace {

std::string Digest(const TrainState& state) {
  std::string text = PositionText(state.position) + " step " + std::to_string(state.step) +
                     " cursor " + std::to_string(state.pass) + ":" +
                     std::to_string(state.consumed) + " weights";
  for (uint64_t weights : state.weights) text += " " + std::to_string(weights);
  return text;
}

std::string Name(WorkerId worker) { return "worker " + std::to_string(worker); }
std::string Name(const Record& record) { return "generation " + std::to_string(record.generation); }

std::string Bytes(const Record& record) {
  membership::Command command;
  command.kind = membership::CommandKind::kPropose;
  command.record = record;
  return membership::EncodeCommand(command);
}

}  // namespace

void JobChecker::Fail(const std::string& what) {
  if (failures_.size() < 5) failures_.push_back(what);
}

void JobChecker::OnProposed(TimePoint now, const Record& record, const Standings& standings) {
  if (record.generation <= last_.generation ||
      !records_.emplace(record.generation, Bytes(record)).second) {
    Fail(Name(record) + " is proposed after generation " + std::to_string(last_.generation));
  }
  if (record.members.size() > static_cast<size_t>(scenario_->coordinator.max_np)) {
    Fail(Name(record) + " has more members than max_np");
  }
  for (size_t i = 1; i < record.members.size(); ++i) {
    const std::string& host = record.members[i].host;
    if (host == record.members[i - 1].host) continue;
    for (size_t j = 0; j < i; ++j) {
      if (record.members[j].host == host) {
        Fail(Name(record) + ": the ranks of host " + host + " are not side by side");
      }
    }
  }
  CheckRoot(record, standings);
  CheckBoundary(now, record, standings);
  const membership::CoordinatorOptions& options = scenario_->coordinator;
  // Commands that let a leaver hand over its state belong to the previous change.
  if (last_.generation != 0 && !handing_over_) resets_.push_back(now);
  handing_over_ = std::any_of(record.members.begin(), record.members.end(), [&](const auto& one) {
    const auto standing = standings.find(one.worker);
    return standing != standings.end() && standing->second.leaving;
  });
  if (!handing_over_ && record.members.size() < static_cast<size_t>(options.min_np)) {
    Fail(Name(record) + " has fewer members than min_np");
  }
  if (options.reset_limit >= 0) {
    int64_t count = 0;
    for (TimePoint reset : resets_) {
      count += options.reset_window == 0 || now - reset <= options.reset_window;
    }
    if (count > options.reset_limit) Fail(Name(record) + " goes over the limit of resets");
  }
  // PROPOSE, GO and END, repeated commands, and commands to lost workers.
  allowed_commands_ += 6 * static_cast<int64_t>(record.members.size() + standings.size()) + 20;
  last_ = record;
}

void JobChecker::CheckRoot(const Record& record, const Standings& standings) {
  Position best;
  for (const membership::Member& member : record.members) {
    const auto found = standings.find(member.worker);
    if (found == standings.end() || !found->second.alive) continue;
    const Standing& standing = found->second;
    if (!standing.stopped)
      Fail(Name(record) + " has " + Name(member.worker) + ", which still trains");
    best = std::max(best, standing.position);
  }
  if (record.position < best) {
    Fail(Name(record) + " starts from " + PositionText(record.position) + ", but a member has " +
         PositionText(best));
  }
  const int64_t common = common_.empty() ? 0 : common_.rbegin()->first;
  if (record.position.commit >= common) return;
  for (const auto& [worker, standing] : standings) {
    if (!standing.alive || !(record.position < standing.position)) continue;
    Fail(Name(record) + " starts from " + PositionText(record.position) +
         ", although all members had made commit " + std::to_string(common) + " and " +
         Name(worker) + " has " + PositionText(standing.position));
  }
  // All members with the state are lost, so the job repeats the work since then.
  ++fallbacks_;
  common_.erase(common_.upper_bound(record.position.commit), common_.end());
}

void JobChecker::CheckBoundary(TimePoint now, const Record& record, const Standings& standings) {
  size_t joined = 0;
  for (const membership::Member& member : record.members) {
    joined += membership::RankOf(last_, member.worker) == kNoRank ? 1 : 0;
  }
  if (last_.generation == 0) return;
  joins_ += joined > 0 ? 1 : 0;
  if (faulted_.count(last_.generation) != 0) {
    if (joined > 0) last_resize_ = now;
    return;
  }
  // Nothing failed, so the generation ended because workers come or go: all stopped at one commit.
  Position first;
  bool any = false;
  for (const membership::Member& member : last_.members) {
    const auto found = standings.find(member.worker);
    if (found == standings.end() || !found->second.alive) continue;
    if (any && found->second.position != first) {
      Fail(Name(last_) + " ends without a failure at " + PositionText(first) +
           " on one member and " + PositionText(found->second.position) + " on another");
    }
    if (!found->second.boundary) {
      Fail(Name(last_) + " ends without a failure, but " + Name(member.worker) +
           " has not stopped at a commit of all");
    }
    first = found->second.position;
    any = true;
  }
  if (joined == 0) return;
  // A change for leaving workers also takes joining workers, at any time.
  const bool goes = std::any_of(last_.members.begin(), last_.members.end(),
                                [&](const membership::Member& member) {
                                  const auto found = standings.find(member.worker);
                                  return found == standings.end() || found->second.leaving ||
                                         membership::RankOf(record, member.worker) == kNoRank;
                                });
  if (!goes && now - last_resize_ < scenario_->coordinator.join_interval) {
    Fail(Name(record) + " takes joiners in sooner after the last ones than join_interval");
  }
  last_resize_ = now;
}

void JobChecker::OnConnect(WorkerId worker, const Record& record) {
  const auto found = records_.find(record.generation);
  if (found == records_.end() || found->second != Bytes(record)) {
    Fail(Name(worker) + " has another record of " + Name(record) + " than was proposed");
  }
}

void JobChecker::OnSynced(WorkerId worker, const Record& record, const TrainState& state) {
  const std::string digest = Digest(state);
  const auto [found, fresh] = states_.emplace(record.generation, digest);
  if (!fresh && found->second != digest) {
    Fail(Name(worker) + " starts " + Name(record) + " with " + digest + ", another member with " +
         found->second);
  }
  if (state.position != record.position) {
    Fail(Name(worker) + " starts " + Name(record) + " at " + PositionText(state.position) +
         ", the record says " + PositionText(record.position));
  }
  CheckHistory(worker, state, false);
}

void JobChecker::OnApply(WorkerId worker, Generation mine, Generation of) {
  if (mine != of) {
    Fail(Name(worker) + " of generation " + std::to_string(mine) +
         " applies a result of generation " + std::to_string(of));
  }
  if (last_.generation > of && membership::RankOf(last_, worker) != kNoRank) {
    Fail(Name(worker) + " applies a result of generation " + std::to_string(of) +
         " after it was made a member of " + Name(last_));
  }
}

void JobChecker::OnCommit(WorkerId worker, Generation generation, size_t members,
                          const TrainState& state) {
  const int64_t commit = state.position.commit;
  const std::string digest = Digest(state);
  const auto common = common_.find(commit);
  if (last_.generation == generation && common != common_.end() && common->second != digest) {
    Fail(Name(worker) + " makes commit " + std::to_string(commit) + " as " + digest +
         ", but all had made it as " + common->second);
  }
  if (++committers_[{generation, commit}] == members && last_.generation == generation) {
    common_[commit] = digest;
  }
}

void JobChecker::OnPublish(WorkerId worker, Generation generation) {
  ++publications_;
  if (generation < allowed_) {
    Fail(Name(worker) + " publishes for generation " + std::to_string(generation) +
         ", but generation " + std::to_string(allowed_) + " may already");
  }
  // A worker that was cut off may apply results while no newer generation does.
  if (generation != last_.generation && cut_off_.count(worker) == 0) {
    Fail(Name(worker) + " publishes for generation " + std::to_string(generation) + ", but " +
         Name(last_) + " has been proposed");
  }
}

void JobChecker::OnDifferentBatches(WorkerId worker, const Batch& a, const Batch& b) {
  Fail(Name(worker) + " trains on " + BatchText(a) +
       " in a step in which another member trains on " + BatchText(b));
}

void JobChecker::OnDismissed(WorkerId worker, const Position& position, const Position& left) {
  if (left < position) {
    Fail(Name(worker) + " has to leave with " + PositionText(position) +
         ", and all that is left is " + PositionText(left));
  }
}

void JobChecker::OnEvicted(TimePoint now, WorkerId worker, TimePoint heard, bool lived) {
  if (lived) Fail(Name(worker) + " is taken for dead, although its process lives and trains");
  if (now - heard < scenario_->coordinator.lease) {
    Fail(Name(worker) + " is taken for dead, although it was heard of " +
         std::to_string((now - heard) / kMillisecond) + " ms ago");
  }
}

void JobChecker::OnCutOff(WorkerId worker, bool wrong) {
  cut_off_.insert(worker);
  if (wrong) Fail(Name(worker) + " is taken for dead, although nobody has lost it");
}

void JobChecker::OnNewCoordinator() {
  resets_.clear();
  host_failures_.clear();
  cooling_.clear();
  allowed_commands_ += 6 * static_cast<int64_t>(last_.members.size()) + 20;
}

void JobChecker::OnFailureOf(TimePoint now, const std::string& host, bool at_once) {
  const membership::HostPolicy& policy = scenario_->coordinator.hosts;
  auto& [until, times] = cooling_[host];
  if (now < until && !at_once) return;
  std::vector<TimePoint>& failures = host_failures_[host];
  if (!at_once && !failures.empty() && now - failures.back() < policy.together) return;
  if (!at_once) failures.push_back(now);
  const auto recent = std::count_if(failures.begin(), failures.end(),
                                    [&](TimePoint when) { return now - when <= policy.window; });
  if (policy.first_failure_bars) {
    until = kNever;
  } else if (at_once || recent >= policy.failures) {
    const Duration longest = std::min(policy.cool_first << std::min(times, 20), policy.cool_most);
    until = std::max(until, now + longest);
    ++times;
  }
}

bool JobChecker::IsBarred(const std::string& host) const {
  const auto found = cooling_.find(host);
  return found != cooling_.end() && found->second.first == kNever;
}

void JobChecker::OnStart(TimePoint now, const std::string& host) {
  const auto found = cooling_.find(host);
  if (found != cooling_.end() && now < found->second.first) {
    Fail("a worker is started on host " + host + ", which cools down");
  }
}

void JobChecker::OnJobEnd(TimePoint now, int code, const std::string& reason) {
  (void)now;
  over_ = true;
  if (code == 0) return;
  const membership::CoordinatorOptions& options = scenario_->coordinator;
  const bool expected =
      (reason.find("resets is used up") != std::string::npos && options.reset_limit >= 0) ||
      (reason.find("fewer than") != std::string::npos &&
       (options.hosts.first_failure_bars || options.min_np > 1)) ||
      (reason.find("each is barred") != std::string::npos && options.hosts.first_failure_bars) ||
      reason.find("the same error came") != std::string::npos;
  if (!expected) Fail("the job ended with exit code " + std::to_string(code) + ": " + reason);
}

// The history holds each sample of a pass once, in order.
void JobChecker::CheckHistory(WorkerId worker, const TrainState& state, bool whole) {
  int64_t pass = 0;
  int64_t next = 0;
  for (const Batch& batch : state.history) {
    if (batch.pass != pass || batch.first != next) {
      Fail(Name(worker) + " has trained on " + BatchText(batch) + ", expected was sample " +
           std::to_string(next) + " of pass " + std::to_string(pass));
      return;
    }
    next = batch.last;
    if (next == scenario_->samples) {
      ++pass;
      next = 0;
    }
  }
  if (state.pass != pass || state.consumed != next) {
    Fail(Name(worker) + " goes on with sample " + std::to_string(state.consumed) + " of pass " +
         std::to_string(state.pass) + ", but has trained up to sample " + std::to_string(next) +
         " of pass " + std::to_string(pass));
  }
  if (whole && pass != scenario_->passes) {
    Fail(Name(worker) + " has ended after " + std::to_string(pass) + " of " +
         std::to_string(scenario_->passes) + " passes");
  }
}

void JobChecker::OnTrainingOver(WorkerId worker, const TrainState& state) {
  CheckHistory(worker, state, true);
  std::array<uint64_t, kBuckets> weights{};
  for (const Batch& batch : state.history) {
    for (int i = 0; i < kBuckets; ++i) weights[i] = Updated(weights[i], GradientOf(batch, i));
  }
  if (weights != state.weights) {
    Fail(Name(worker) + " has other weights at the end than the steps in its history make");
  }
}

void JobChecker::Finish(bool lossy) {
  if (!over_) Fail("the job has not ended");
  const int64_t allowed = lossy ? 4 * allowed_commands_ : allowed_commands_;
  if (commands_ > allowed + 200) {
    Fail(std::to_string(commands_) + " messages of the coordinator, at most " +
         std::to_string(allowed + 200) + " were expected: they have to grow with the members only");
  }
}

}  // namespace tfring::sim
