#include "ops/sim/checker.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace tfring::sim {

namespace {

constexpr size_t kMaxFailures = 20;

// Returns, as text for messages, what must be the same on all members of a plan.
std::string Content(const PlanRun& run) {
  const Plan& plan = run.plan;
  std::ostringstream out;
  out << CollectiveKindName(plan.kind)
      << (plan.path == DataPath::kDevice ? " on devices" : " on the CPU") << " set "
      << plan.process_set << " of " << RanksString(run.members) << " " << DataTypeName(plan.dtype)
      << " " << ReduceOpName(plan.op) << " " << plan.prescale << " " << plan.postscale << " root "
      << plan.root << " peer " << plan.peer << " without " << RanksString(plan.absent) << ":";
  // The members of an alltoall get different values: see WrongRows.
  const bool same_values = plan.kind != CollectiveKind::kAlltoall;
  for (const PlanItem& item : plan.items) {
    out << " " << item.name << "#" << item.cache_id;
    if (same_values) out << ShapeString(item.negotiated_values);
  }
  return out.str();
}

// Returns the values of a plan that come from this rank's request.
std::vector<int64_t> OwnValues(const Request& request, Rank rank, size_t members) {
  std::vector<int64_t> own;
  switch (request.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      for (const Shape& shape : request.shapes) own.push_back(shape[0]);
      return own;
    case CollectiveKind::kScatter:
      if (rank != request.root) return {};
      return RowsByMember(request, members);
    case CollectiveKind::kAlltoall:
      return RowsByMember(request, members);
    case CollectiveKind::kSendRecv:
      return rank == request.root ? request.shapes[0] : own;
    case CollectiveKind::kAddProcessSet:
      return {request.set_ranks.begin(), request.set_ranks.end()};
    case CollectiveKind::kRemoveProcessSet:
      return {request.removed_set};
    default:
      return own;
  }
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string Name(Rank rank) {
  return "rank " + std::to_string(rank) + " (host h" + std::to_string(rank) + ")";
}

// Returns whether the text names `rank` as one that has left. With rank 4: "rank 4 (host h4) has
// shut down ...", "ranks 0, 2-5 have shut down ..." or "rank 4 (host h4) ended with an exception
// ...".
bool SaysShutDown(const std::string& text, Rank rank) {
  if (Contains(text, Name(rank) + " ended with an exception: ")) return true;
  const size_t end = text.find(" shut down");
  size_t at = text.find("rank");
  if (end == std::string::npos || at >= end) return false;
  at = text.find(' ', at) + 1;
  while (at < end && std::isdigit(static_cast<unsigned char>(text[at]))) {
    size_t used = 0;
    const int first = std::stoi(text.substr(at), &used);
    int last = first;
    at += used;
    if (text[at] == '-') {
      last = std::stoi(text.substr(at + 1), &used);
      at += used + 1;
    }
    if (first <= rank && rank <= last) return true;
    at += 2;  // ", "
  }
  return false;
}

}  // namespace

void Checker::Fail(const std::string& what) {
  if (failures_.size() < kMaxFailures) failures_.push_back(what);
}

void Checker::OnSubmit(Rank rank, CallId id, const Call& call) {
  ranks_[rank].calls.emplace(id, SeenCall{call, 0});
  ++ranks_[rank].open;
  if (call.expected != StatusCode::kOk && call.expected != StatusCode::kAborted &&
      call.request.in_run) {
    disagreements_.insert({call.request.process_set, call.attempt});
  }
}

void Checker::OnRun(Rank rank, const PlanRun& run) {
  PerRank& self = ranks_[rank];
  const std::string who =
      "rank " + std::to_string(rank) + ", plan " + std::to_string(run.plan.sequence) + ": ";
  SeenPlan& seen = plans_[run.plan.sequence];
  ++seen.runs;
  seen.members = run.members.size();
  if (run.plan.sequence <= self.last_sequence) {
    Fail(who + "runs after plan " + std::to_string(self.last_sequence));
  }
  self.last_sequence = run.plan.sequence;
  if (run.entry == PlanEntry::kPlanned && seen.locked) {
    Fail(who + "is a batch of a lock elsewhere");
  }
  const std::string content = Content(run);
  if (seen.content.empty()) seen.content = content;
  if (seen.content != content) {
    Fail(who + "differs from what another member runs: \"" + content + "\" is not \"" +
         seen.content + "\"");
  }
  if (!std::binary_search(run.members.begin(), run.members.end(), rank)) {
    Fail(who + "is no member");
  }
  if (run.entry != PlanEntry::kPlanned) CheckBatch(who, rank, run);
  if (run.entry != PlanEntry::kVoid) CheckCalls(rank, run);
}

void Checker::CheckBatch(const std::string& who, Rank rank, const PlanRun& run) {
  SeenPlan& seen = plans_[run.plan.sequence];
  ++locked_;
  if (seen.runs > 1 && !seen.locked) Fail(who + "is a batch of a lock here only");
  seen.locked = true;
  if (run.entry == PlanEntry::kEntered) seen.entered[rank] = run.calls;
  if (run.entry != PlanEntry::kVoid) return;
  seen.voids.push_back(rank);
  if (!run.calls.empty()) Fail(who + "is void, but has calls");
  if (seen.ended) Fail(who + "is void, but has ended elsewhere");
}

void Checker::OnPlanEnd(Rank rank, const Completion& completion) {
  if (!completion.status.ok() || completion.stage != CompletionStage::kEnded) return;
  SeenPlan& seen = plans_[completion.sequence];
  const std::string who =
      "rank " + std::to_string(rank) + ", plan " + std::to_string(completion.sequence) + ": ";
  (completion.recalled ? seen.recalled : seen.ended) = true;
  recalled_ += completion.recalled;
  if (seen.ended && !seen.voids.empty()) {
    Fail(who + "has ended, but not all ranks have entered it");
  }
  if (seen.ended && seen.recalled) Fail(who + "was recalled on some ranks only");
  const auto entered = seen.entered.find(rank);
  if (entered == seen.entered.end()) return;
  for (CallId id : entered->second) {
    const std::vector<Rank>& participants = call(rank, id).participants;
    if (completion.recalled || participants.empty() || participants.size() == seen.members)
      continue;
    Fail(who + "'" + call(rank, id).request.name + "' ran on all ranks, not on " +
         RanksString(participants));
  }
  seen.entered.erase(entered);
}

void Checker::CheckCalls(Rank rank, const PlanRun& run) {
  const std::string who =
      "rank " + std::to_string(rank) + ", plan " + std::to_string(run.plan.sequence) + ": ";
  if (run.calls.size() != run.plan.items.size()) return Fail(who + "calls are missing");
  for (size_t i = 0; i < run.calls.size(); ++i) {
    const PlanItem& item = run.plan.items[i];
    auto it = ranks_[rank].calls.find(run.calls[i]);
    if (it == ranks_[rank].calls.end()) {
      Fail(who + "'" + item.name + "' runs for a call that was never made");
      continue;
    }
    const Request& request = it->second.call.request;
    SeenPlan& seen = plans_[run.plan.sequence];
    if (seen.runs == 1 && i == 0) seen.attempt = it->second.call.attempt;
    if (seen.attempt != it->second.call.attempt) {
      Fail(who + "combines '" + item.name + "' of attempt " +
           std::to_string(it->second.call.attempt) + " with attempt " +
           std::to_string(seen.attempt));
    }
    if (it->second.results != 0) Fail(who + "'" + item.name + "' runs after its result");
    CheckPath(who, run, request, &seen);
    if (request.name != item.name || request.process_set != run.plan.process_set ||
        request.kind != run.plan.kind) {
      Fail(who + "'" + item.name + "' runs for the call '" + request.name + "'");
      continue;
    }
    std::string wrong = WrongItem(rank, run, item, it->second.call);
    if (wrong.empty() && request.kind == CollectiveKind::kAlltoall) wrong = WrongRows(rank, run);
    if (!wrong.empty()) Fail(who + "'" + item.name + "' " + wrong);
  }
}

// A plan is on devices exactly if all ranks with its calls asked for that and no rank is absent.
void Checker::CheckPath(const std::string& who, const PlanRun& run, const Request& request,
                        SeenPlan* seen) {
  const bool on_device = run.plan.path == DataPath::kDevice;
  if (request.path != DataPath::kDevice) seen->for_host.insert(request.name);
  if (run.entry == PlanEntry::kEntered && request.path != DataPath::kCpu) {
    Fail(who + "'" + request.name + "' is in a lock, but not in CPU memory");
  }
  const bool possible =
      run.uses_backend() && run.plan.absent.empty() && seen->for_host.count(request.name) == 0;
  if (on_device && !possible) {
    Fail(who + "'" + request.name + "' runs on devices, which not all asked for");
  }
  if (!on_device && possible && seen->runs == seen->members) {
    Fail(who + "'" + request.name + "' runs on the CPU, but all asked for devices");
  }
}

// For an alltoall: checks this rank's values for the members that already run the plan against
// their values for this rank.
std::string Checker::WrongRows(Rank rank, const PlanRun& run) {
  auto& told = plans_[run.plan.sequence].told;
  const std::vector<int64_t>& mine = run.plan.items[0].negotiated_values;
  const std::vector<Rank>& members = run.members;
  const auto position = [&](Rank r) {
    return static_cast<size_t>(std::lower_bound(members.begin(), members.end(), r) -
                               members.begin());
  };
  const size_t count = members.size();
  const size_t self = position(rank);
  told[rank] = mine;
  for (const auto& [other, theirs] : told) {
    const size_t m = position(other);
    if (mine[m] != theirs[count + self] || mine[count + m] != theirs[self]) {
      return "has other rows between this rank and rank " + std::to_string(other) +
             " than that rank was told";
    }
  }
  return "";
}

// Returns the error in this rank's part of a plan's values; empty if there is none. Another check
// makes sure that all ranks have the same plan, so together their parts cover all values.
std::string Checker::WrongItem(Rank rank, const PlanRun& run, const PlanItem& item,
                               const Call& call) {
  const Request& request = call.request;
  // A rank enters a batch of a lock before it knows whether the other ranks do: see OnPlanEnd.
  const bool decided = run.entry == PlanEntry::kPlanned;
  if (decided && !call.participants.empty() && run.members != call.participants) {
    return "is run by the ranks " + RanksString(run.members) + ", not by " +
           RanksString(call.participants);
  }
  const size_t members = run.members.size();
  const auto self = static_cast<size_t>(
      std::lower_bound(run.members.begin(), run.members.end(), rank) - run.members.begin());
  const std::vector<int64_t>& dims = item.negotiated_values;
  const std::vector<int64_t> own = OwnValues(request, rank, members);
  size_t first = 0;  // index of this rank's first value
  size_t step = 1;
  size_t count = 0;
  switch (request.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      first = self;
      step = members;
      count = request.shapes.size() * members;
      break;
    case CollectiveKind::kAlltoall:
      count = 2 * members;
      break;
    case CollectiveKind::kScatter:
      count = members;
      break;
    case CollectiveKind::kSendRecv:
      count = rank == request.root ? own.size() : dims.size();
      break;
    case CollectiveKind::kJoin:
      if (dims.size() == 1 && std::count(run.members.begin(), run.members.end(), dims[0]) == 1) {
        return "";
      }
      return "names no rank that joined last";
    case CollectiveKind::kAddProcessSet:
      first = 1;
      count = 1 + request.set_ranks.size();
      if (!dims.empty() && call.new_set >= 0 && dims[0] != call.new_set) {
        return "has id " + std::to_string(dims[0]) + ", not " + std::to_string(call.new_set);
      }
      break;
    case CollectiveKind::kRemoveProcessSet:
      count = 1;
      break;
    default:
      break;
  }
  bool right = dims.size() == count;
  for (size_t i = 0; right && i < own.size(); ++i) right = dims[first + i * step] == own[i];
  return right ? "" : "has wrong negotiated values";
}

void Checker::OnResult(Rank rank, CallId id, const Status& status) {
  const std::string who = "rank " + std::to_string(rank) + ", call " + std::to_string(id);
  auto it = ranks_[rank].calls.find(id);
  if (it == ranks_[rank].calls.end()) return Fail(who + " has a result, but was never made");
  SeenCall& seen = it->second;
  if (++seen.results > 1) return Fail(who + " '" + seen.call.request.name + "' ended twice");
  ++results_;
  if (status.code() == StatusCode::kAborted) ++aborted_;
  --ranks_[rank].open;
  const std::string wrong = WrongResult(rank, seen.call, status);
  if (!wrong.empty()) {
    Fail(who + " '" + seen.call.request.name + "' ended with " + status.ToString() + ": " + wrong);
  }
}

std::string Checker::WrongResult(Rank rank, const Call& call, const Status& status) const {
  const std::string& text = status.message();
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kInvalidArgument:
      if (call.removed) return status.ok() ? "its process set is gone" : "";
      if (status.code() != call.expected) {
        return "it should be " + Status(call.expected, "").ToString();
      }
      return status.ok() || Contains(text, "'" + call.request.name + "'")
                 ? ""
                 : "the tensor is not named";
    case StatusCode::kAborted:
      if (!call.may_be_aborted) return "no step failed";
      if (call.removed || NamesAFailedStep(call, text) || NamesADisagreement(call, text)) return "";
      return "that is no rank whose step failed";
    case StatusCode::kUnavailable:
      if (allowed_.lost == kNoRank) return "nobody was lost";
      if (!Contains(text, "rank " + std::to_string(allowed_.lost) + " (host ")) {
        return "rank " + std::to_string(allowed_.lost) + " is the lost one";
      }
      return allowed_.silent && !Contains(text, "no heartbeat") ? "it missed its heartbeats" : "";
    case StatusCode::kCancelled:
      if (ranks_[rank].shut_down) return "";
      if (allowed_.departed == kNoRank) return "nobody has shut down";
      // When rank 0 has shut down, all other ranks shut down, in any order.
      if (allowed_.departed == 0 &&
          (Contains(text, "has shut down") || Contains(text, "ended with"))) {
        return "";
      }
      if (SaysShutDown(text, allowed_.departed)) return "";
      if (allowed_.cascade && NamesADepartedRank(text)) return "";
      return "rank " + std::to_string(allowed_.departed) + " is the one that has shut down";
    default:
      return "this never happens";
  }
}

bool Checker::NamesAFailedStep(const Call& call, const std::string& text) const {
  const auto failed = failures_of_steps_.find({call.request.process_set, call.attempt});
  return failed != failures_of_steps_.end() &&
         std::any_of(failed->second.begin(), failed->second.end(), [&](Rank rank) {
           return Contains(text, "the step of " + Name(rank) + " failed: ");
         });
}

bool Checker::NamesADisagreement(const Call& call, const std::string& text) const {
  return disagreements_.count({call.request.process_set, call.attempt}) > 0 &&
         (Contains(text, " failed: FailedPrecondition: ") ||
          (Contains(text, " failed: InvalidArgument: ") && Contains(text, " of tensor '")));
}

bool Checker::NamesADepartedRank(const std::string& text) const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].shut_down && SaysShutDown(text, static_cast<Rank>(rank))) return true;
  }
  return false;
}

void Checker::Finish(const std::vector<Rank>& ended) {
  for (Rank rank : ended) {
    for (const auto& [id, seen] : ranks_[rank].calls) {
      if (seen.results != 0) continue;
      Fail("rank " + std::to_string(rank) + ", call " + std::to_string(id) + " '" +
           seen.call.request.name + "' never ended");
    }
  }
  if (allowed_.lost != kNoRank || allowed_.departed != kNoRank) return;
  for (const auto& [sequence, plan] : plans_) {
    if (plan.runs != plan.members) {
      Fail("plan " + std::to_string(sequence) + " ran on " + std::to_string(plan.runs) + " of " +
           std::to_string(plan.members) + " members");
    }
  }
}

void Checker::OnLockNews(Rank rank, const LockNews& news) {
  const std::string who = "rank " + std::to_string(rank) + ", lock " + std::to_string(news.id);
  uint64_t& present = ranks_[rank].lock;
  if (present != (news.over ? news.id : 0)) {
    Fail(who + (news.over ? " ends" : " begins") + " in lock " + std::to_string(present));
  }
  present = news.over ? 0 : news.id;
  const std::string text = NewsText(news);
  std::string& seen = lock_news_[{news.id, news.over}];
  if (seen.empty()) seen = text;
  if (seen != text) Fail(who + ": " + text + "; another rank has: " + seen);
  if (news.over && !IsTrue(news.rank, news.reason)) Fail(who + ": it is not true that " + text);
}

// Returns whether the rank has done what the reason says.
bool Checker::IsTrue(Rank rank, const UnlockReason& reason) const {
  const auto called = [&](const auto& matches) {
    return std::any_of(ranks_[rank].calls.begin(), ranks_[rank].calls.end(),
                       [&](const auto& item) { return matches(item.second.call); });
  };
  switch (reason.cause) {
    case UnlockCause::kOtherCall:
    case UnlockCause::kChangedCall:
    case UnlockCause::kWaited:
      return called([&](const Call& call) { return call.request.name == reason.text; });
    case UnlockCause::kIncomplete:
    case UnlockCause::kApart:
      return !reason.text.empty();
    case UnlockCause::kJoin:
      return called([](const Call& call) { return call.request.kind == CollectiveKind::kJoin; });
    case UnlockCause::kProcessSets:
      return called([](const Call& call) { return ChangesProcessSets(call.request.kind); });
    case UnlockCause::kStepFailed:
      return reason.text.empty()
                 ? !failures_of_steps_.empty()
                 : reason.text.find("the step of rank " + std::to_string(rank)) == 0;
    case UnlockCause::kShutdown:
      return ranks_[rank].shut_down;
    case UnlockCause::kFollows:
      break;
  }
  return false;
}

}  // namespace tfring::sim
