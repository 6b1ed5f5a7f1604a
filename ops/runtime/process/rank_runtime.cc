#include "ops/runtime/process/rank_runtime.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "ops/runtime/base/log.h"
#include "ops/runtime/process/buffer_checks.h"
#include "ops/runtime/process/call_table.h"
#include "ops/runtime/process/completion_thread.h"
#include "ops/runtime/process/control_loop.h"
#include "ops/runtime/process/member_table.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/transport/socket_util.h"

namespace tfring {
namespace {

constexpr Duration kJoinLimit = 5 * kSecond;
// What a `done` that is running gets, even if the control thread used up the limit.
constexpr Duration kLastDoneLimit = kSecond / 2;

Status StartBackend(const RankRuntimeParts& parts, ControlLoop* loop) {
  SignalsBlocked for_its_threads;
  try {
    loop->SetBackend(parts.make_backend(loop->Sink()));
    return OkStatus();
  } catch (const std::exception& error) {
    return Internal(std::string("cannot start the backend: ") + error.what());
  }
}

std::string NoSuchSet(ProcessSetId id) {
  return "there is no process set " + std::to_string(id) +
         ": add it on every rank before its use, and do not use it once it is removed";
}

}  // namespace

// What the control thread uses, and keeps alive if it has to be left behind.
struct RankRuntime::Core {
  explicit Core(int size) : members(size) {}
  CallTable table;
  MemberTable members;
  CompletionThread completions;
  std::unique_ptr<ControlLoop> loop;
};

Result<std::unique_ptr<RankRuntime>> RankRuntime::Start(RankRuntimeParts parts) {
  auto core = std::make_shared<Core>(parts.engine.size);
  std::unique_ptr<RankRuntime> runtime(new RankRuntime(core, parts.engine.rank));
  for (auto& [id, ranks] : parts.engine.process_sets) {
    TFRING_RETURN_IF_ERROR(core->members.Add(id, ranks));
  }
  core->loop = std::make_unique<ControlLoop>(std::move(parts.engine), std::move(parts.control),
                                             &core->table, &core->members, &core->completions);
  TFRING_RETURN_IF_ERROR(core->completions.Start());
  Status started = StartBackend(parts, core->loop.get());
  if (started.ok()) {
    started = runtime->control_thread_.Start("tfring-control", [core] { core->loop->Run(); });
    if (!started.ok()) core->loop->DropBackend(started);
  }
  if (!started.ok()) {
    core->completions.Stop(MonotonicNow() + kJoinLimit);
    return started;
  }
  runtime->shut_down_ = false;
  return runtime;
}

RankRuntime::RankRuntime(std::shared_ptr<Core> core, Rank rank)
    : rank_(rank), core_(std::move(core)), shut_down_(true) {}

RankRuntime::~RankRuntime() { Shutdown(); }

Status RankRuntime::Check(const LocalCall& entry, Request* request) const {
  const MemberTable::Members members = core_->members.Find(request->process_set);
  if (members == nullptr) {
    return InvalidArgument("tensor '" + request->name + "': " + NoSuchSet(request->process_set));
  }
  TFRING_RETURN_IF_ERROR(CheckRouting(*request, *members, rank_));
  if (!request->refusal.empty()) return OkStatus();
  Status valid = CheckRequest(*request, *members, rank_);
  if (valid.ok()) valid = CheckBuffers(*request, entry, rank_);
  // The other ranks are to hear of it instead of waiting for this one.
  if (!valid.ok()) Refuse(valid, request);
  return OkStatus();
}

void RankRuntime::Enqueue(Request request, LocalCall entry) {
  Status status = Check(entry, &request);
  if (status.ok()) status = core_->table.Add(&request, &entry);
  if (status.ok()) {
    core_->loop->NotifySubmission();
  } else if (entry.done) {
    entry.done(status);
  }
}

void RankRuntime::Shutdown() {
  std::lock_guard<std::mutex> lock(shutdown_mutex_);
  if (shut_down_) return;
  shut_down_ = true;
  const TimePoint deadline = MonotonicNow() + kJoinLimit;
  core_->table.CloseAdmission(
      Cancelled("rank " + std::to_string(rank_) + " has shut down: call init() again first"));
  core_->loop->RequestShutdown();
  if (!control_thread_.Join(deadline)) {
    TFRING_LOG(kError) << "the control thread did not end within " << kJoinLimit / kSecond
                       << " s and is left behind; collectives that were running have no result";
  }
  if (!core_->completions.Stop(std::max(deadline, MonotonicNow() + kLastDoneLimit))) {
    TFRING_LOG(kError) << "a completion callback did not return within " << kJoinLimit / kSecond
                       << " s of the shutdown; its thread is left behind";
  }
}

std::map<ProcessSetId, std::vector<Rank>> RankRuntime::ProcessSets() const {
  return core_->members.All();
}

Result<std::vector<Rank>> RankRuntime::Members(ProcessSetId id) const {
  const MemberTable::Members members = core_->members.Find(id);
  if (members == nullptr) return InvalidArgument(NoSuchSet(id));
  return *members;
}

bool RankRuntime::OnCompletionThread() const { return core_->completions.IsCurrent(); }

std::map<std::string, int64_t> RankRuntime::Counters() const {
  const ControlLoop::Counts counts = core_->loop->counts();
  return {
      {"bytes_sent", counts.bytes_sent},
      {"control_wakeups", counts.control_wakeups},
      {"data_wakeups", counts.data_wakeups},
      {"completion_wakeups", core_->completions.wakeups()},
      {"plans", counts.plans},
      {"collectives", counts.collectives},
      {"tensors", counts.tensors},
      {"forwarded", counts.forwarded},
      {"cache_hits", counts.cache_hits},
  };
}

}  // namespace tfring
