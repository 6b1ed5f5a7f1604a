#include "tests/cc/threads/job.h"

#include <functional>
#include <utility>

#include "tests/cc/threads/scheduler.h"

namespace tfring::threads {
namespace {

constexpr int kMaxSteps = 24;
constexpr size_t kElements = 3;
// Longer than a lock waits, LockTimer::kPatience.
constexpr Duration kLateBy = 150 * kMillisecond;
// A step where nobody is late takes a few milliseconds: what ends later has waited for a time
// limit.
constexpr Duration kStepLimit = 50 * kMillisecond;
// With pauses, and a few ends of locks that have waited.
constexpr Duration kLateStepLimit = 3 * kSecond;

std::string Of(Rank rank) { return "rank " + std::to_string(rank); }

}  // namespace

Job::Job(const Options& options, Report* report)
    : options_(options), report_(report), random_(options.seed), meetings_(options.ranks) {
  users_ = static_cast<int>(random_.Between(1, 3));
  tensors_ = static_cast<int>(random_.Between(1, 3));
  in_steps_ = random_.Percent(70);
  chained_ = random_.Percent(25);
  one_by_one_from_ = !chained_ && random_.Percent(40) ? 0 : kMaxSteps;
  pauses_percent_ = random_.Pick(std::vector<int>{0, 20});
  late_ = random_.Percent(20);
  // Calls that were fused until then wait for each other.
  if (late_ && !chained_ && random_.Percent(50)) one_by_one_from_ = 10;
  const int64_t equal = random_.Pick(std::vector<int64_t>{80, 95, 100});
  for (int i = 0; i < kMaxSteps; ++i) {
    const bool is_equal = i < 8 || random_.Below(100) < equal;
    const auto unequal = static_cast<Step>(random_.Between(1, late_ ? 3 : 2));
    steps_.push_back(is_equal ? Step::kEqual : unequal);
  }
}

Config Job::RandomConfig() {
  Config config;
  config.lock_schedule = true;
  if (random_.Percent(60)) config.max_plans_in_flight = 1;  // more tensors are fused
  // Without heartbeats nothing but a wake-up ends a wait.
  if (random_.Percent(60)) config.heartbeat_interval = 0;
  return config;
}

void Job::Start() {
  InProcessControlHub hub(options_.ranks);
  const Config config = RandomConfig();
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    ranks_.push_back(std::make_unique<RankState>());
    RankRuntimeParts parts;
    parts.engine.rank = rank;
    parts.engine.size = options_.ranks;
    parts.engine.config = config;
    for (Rank r = 0; r < options_.ranks; ++r) parts.engine.hosts.push_back("host");
    parts.control = meetings_.Watched(rank, hub.Endpoint(rank));
    controls_.push_back(parts.control.get());
    parts.make_backend = [this, rank](CompletionSink sink, ThreadPool* pool) {
      return meetings_.Backend(rank, std::move(sink), pool);
    };
    auto started = RankRuntime::Start(std::move(parts));
    if (!started.ok()) Fail(started.status().ToString());
    ranks_.back()->runtime = std::move(*started);
  }
}

void Job::Run() {
  Start();
  std::thread injector;
  if (options_.fault != Fault::kNone) injector = std::thread([this] { Inject(); });
  std::vector<std::thread> processes;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    processes.emplace_back([this, rank] { Process(rank); });
  }
  for (std::thread& process : processes) process.join();
  meetings_.Stop();
  if (injector.joinable()) injector.join();
  CheckCalls();
  report_->fused += meetings_.fused();
}

// What the main thread of a process does: it leaves when its threads have ended, or one has seen an
// error.
void Job::Process(Rank rank) {
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  state.users = users_;
  std::vector<std::thread> users;
  for (int user = 0; user < users_; ++user) {
    users.emplace_back([this, rank, user] { User(rank, user); });
  }
  {
    std::unique_lock<std::mutex> lock(state.mutex);
    state.changed.wait(lock, [&] { return state.users == 0 || state.failed; });
    state.leaves = true;
  }
  Leave(rank);
  for (std::thread& user : users) user.join();
}

void Job::Leave(Rank rank) {
  const TimePoint begin = Now();
  ranks_[static_cast<size_t>(rank)]->runtime->Shutdown();
  const bool prompt = IsPrompt() || (options_.fault == Fault::kShutdown && in_steps_ && !late_);
  if (!prompt || Now() - begin <= kStepLimit) return;
  Fail(Of(rank) + " takes " + std::to_string((Now() - begin) / kMillisecond) +
       " ms to leave, although nobody was late");
}

void Job::User(Rank rank, int user) {
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  sim::Random random(options_.seed * 1000 + static_cast<uint64_t>(rank * 10 + user));
  bool well = true;
  for (int number = 0; well && number < kMaxSteps; ++number) {
    const TimePoint begin = Now();
    well = OneStep(rank, user, number, &random) && (!in_steps_ || EndStep(rank));
    const Duration limit = IsPrompt() ? kStepLimit : kLateStepLimit;
    if (well && !faulted_ && Now() - begin > limit) {
      Fail("a step of " + Of(rank) + " takes " + std::to_string((Now() - begin) / kMillisecond) +
           " ms");
    }
  }
  std::lock_guard<std::mutex> lock(state.mutex);
  --state.users;
  state.failed = state.failed || !well;
  state.changed.notify_all();
}

bool Job::OneStep(Rank rank, int user, int number, sim::Random* random) {
  const Step step = user == 0 ? steps_[static_cast<size_t>(number)] : Step::kEqual;
  const auto value = static_cast<float>(number + user + 1);
  const float sum = value * static_cast<float>(options_.ranks);
  const auto name = [&](int tensor) {
    return "t" + std::to_string(user) + "." + std::to_string(tensor);
  };
  // Control threads that have nothing to do sleep without a limit by then.
  if (number > 0 && number == one_by_one_from_) Sleep(4 * kLateBy);
  if (step == Step::kLate && rank == number % options_.ranks) Sleep(kLateBy);
  std::vector<Call*> calls;
  if (chained_) {
    // Of the callbacks, each makes the next call.
    auto made = std::make_shared<std::vector<Call*>>(static_cast<size_t>(tensors_));
    auto next = std::make_shared<std::function<void(int)>>();
    *next = [=, weak = std::weak_ptr<std::function<void(int)>>(next)](int tensor) {
      std::function<void()> then;
      if (tensor + 1 < tensors_) {
        then = [=, kept = weak.lock()] { (*kept)(tensor + 1); };
      }
      (*made)[static_cast<size_t>(tensor)] = Submit(rank, name(tensor), kElements, value, then);
    };
    (*next)(0);
    for (int tensor = 0; tensor < tensors_; ++tensor) {
      if (!WaitFor(rank, (*made)[static_cast<size_t>(tensor)], sum)) return false;
    }
  } else {
    for (int tensor = 0; tensor < tensors_; ++tensor) {
      if (random->Percent(pauses_percent_)) Sleep(random->Below(kMillisecond));
      calls.push_back(Submit(rank, name(tensor), kElements, value));
      if (number >= one_by_one_from_ && !WaitFor(rank, calls.back(), sum)) return false;
    }
    for (Call* call : calls) {
      if (!WaitFor(rank, call, sum)) return false;
    }
  }
  if (step == Step::kOther) return WaitFor(rank, Submit(rank, "other", kElements, value), sum);
  if (step == Step::kWrong) {
    // Of other shapes on rank 0: an error on all ranks, after which they go on.
    Call* const call = Submit(rank, name(0), rank == 0 ? kElements + 1 : kElements, value);
    if (WaitFor(rank, call, sum, true)) Fail(Of(rank) + " adds up tensors of other shapes");
    const bool told = call->status.code() == StatusCode::kFailedPrecondition;
    if (!told && !faulted_) {
      Fail(Of(rank) + ": tensors of other shapes end with " + call->status.ToString());
    }
    return told;
  }
  return true;
}

Job::Call* Job::Submit(Rank rank, const std::string& name, size_t elements, float value,
                       const std::function<void()>& then) {
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  auto owned = std::make_unique<Call>();
  Call* const call = owned.get();
  call->name = name;
  call->input.assign(elements, value);
  call->output.assign(elements, -1.0f);
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    state.calls.push_back(std::move(owned));
  }
  Request request;
  request.kind = CollectiveKind::kAllreduce;
  request.name = name;
  request.shapes.push_back({static_cast<int64_t>(elements)});
  LocalCall local;
  const auto bytes = static_cast<int64_t>(elements * sizeof(float));
  local.buffers.push_back({call->input.data(), call->output.data(), bytes, bytes});
  local.done = [this, rank, call, then, caller = std::this_thread::get_id()](const Status& status) {
    Ended(rank, call, status, caller, then);
  };
  state.runtime->Enqueue(std::move(request), std::move(local));
  return call;
}

// The `done` of a call.
void Job::Ended(Rank rank, Call* call, const Status& status, std::thread::id caller,
                const std::function<void()>& then) {
  if (HoldsAMutex()) Fail("the callback of '" + call->name + "' runs with a mutex held");
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    if (++state.in_done > 1 && !state.leaves && !faulted_) {
      Fail(Of(rank) + " runs two callbacks at once");
    }
    ++report_->calls;
    report_->failed_calls += status.ok() ? 0 : 1;
    report_->by_callers += caller == std::this_thread::get_id() ? 1 : 0;
  }
  if (status.ok() && then) then();
  std::lock_guard<std::mutex> lock(state.mutex);
  --state.in_done;
  call->status = status;
  if (++call->ends > 1) Fail(Of(rank) + ": '" + call->name + "' has ended twice");
  if (!status.ok() && then) state.failed = true;
  state.changed.notify_all();
}

// False if it has ended with an error.
bool Job::WaitFor(Rank rank, Call* call, float expected, bool may_fail) {
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  std::unique_lock<std::mutex> lock(state.mutex);
  state.changed.wait(lock, [&] { return call->ends > 0; });
  if (!call->status.ok()) {
    if (may_fail || faulted_) return false;
    Fail(Of(rank) + ": '" + call->name + "' fails without a fault: " + call->status.ToString());
  }
  for (float element : call->output) {
    if (element == expected) continue;
    Fail(Of(rank) + ": '" + call->name + "' is " + std::to_string(element) + ", not " +
         std::to_string(expected));
  }
  return true;
}

// False if another thread of the rank has seen an error, and will not come.
bool Job::EndStep(Rank rank) {
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  std::unique_lock<std::mutex> lock(state.mutex);
  if (++state.at_step == users_) {
    state.at_step = 0;
    ++state.steps;
    state.changed.notify_all();
    return true;
  }
  const int64_t step = state.steps;
  state.changed.wait(lock, [&] { return state.steps > step || state.failed; });
  return state.steps > step;
}

// At a random moment after a random batch of a lock.
void Job::Inject() {
  sim::Random random(options_.seed + 77);
  const auto rank = static_cast<Rank>(random.Below(options_.ranks));
  meetings_.WaitForBatches(rank, static_cast<int>(random.Between(1, 20)));
  if (random.Percent(50)) Sleep(random.Below(200 * kMicrosecond));
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    if (state.leaves) return;
  }
  faulted_ = true;
  ++report_->faults;
  report_->in_lock += meetings_.InLock(rank) ? 1 : 0;
  if (options_.fault == Fault::kDeath) {
    // What the other ranks see; the process itself then goes, too, or only its connections for
    // data.
    if (random.Percent(30)) controls_[static_cast<size_t>(rank)]->Close(0);
    meetings_.Lose(rank);
    if (random.Percent(40)) return;
    controls_[static_cast<size_t>(rank)]->Close(0);
    state.runtime->Abandon(Aborted("killed"), Aborted("killed"));
  } else if (options_.fault == Fault::kShutdown) {
    Leave(rank);
  } else if (options_.fault == Fault::kAbandon) {
    state.runtime->Abandon(Aborted("abandoned"), Aborted("abandoned"));
  } else {
    state.runtime->CancelCalls(Cancelled("a step failed"));
  }
}

void Job::CheckCalls() {
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    RankState& state = *ranks_[static_cast<size_t>(rank)];
    const auto counts = state.runtime->Counters();
    state.runtime.reset();
    for (const auto& call : state.calls) {
      if (call->ends == 1) continue;
      Fail(Of(rank) + ": '" + call->name + "' has ended " + std::to_string(call->ends) + " times");
    }
    if (faulted_) continue;
    if (IsPrompt()) {
      for (const char* cause : {"unlocks_waited", "unlocks_incomplete"}) {
        if (counts.at(cause) == 0) continue;
        Fail(Of(rank) + " counts " + cause + ", although nobody was late");
      }
    }
    if (rank != 0) continue;
    report_->locks += counts.at("locks");
    report_->rounds += counts.at("lock_rounds");
  }
}

}  // namespace tfring::threads
