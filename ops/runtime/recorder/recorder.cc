#include "ops/runtime/recorder/recorder.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "ops/runtime/base/clock.h"

namespace tfring {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// So many slots of open calls are left alone before one is overwritten.
constexpr int kSlotTries = 64;

std::atomic<uint64_t> generations{0};

// Copies what fits: of a longer text its beginning and its end, where names differ. Nothing is left
// of what the slot had before: readers compare whole fields.
template <size_t kSize>
void CopyText(std::string_view text, char (&field)[kSize]) {
  if (text.size() <= kSize) {
    std::memcpy(field, text.data(), text.size());
    std::memset(field + text.size(), 0, kSize - text.size());
    return;
  }
  constexpr size_t kEnd = kSize / 2;
  constexpr size_t kBegin = kSize - kEnd - 3;
  std::memcpy(field, text.data(), kBegin);
  std::memcpy(field + kBegin, "...", 3);
  std::memcpy(field + kBegin + 3, text.data() + text.size() - kEnd, kEnd);
}

void CopyShapes(const std::vector<Shape>& shapes, int32_t (&field)[12]) {
  size_t used = 0;
  for (const Shape& shape : shapes) {
    if (used + 1 + shape.size() > std::size(field)) break;
    field[used++] = static_cast<int32_t>(shape.size());
    for (int64_t size : shape) {
      field[used++] = static_cast<int32_t>(std::min<int64_t>(size, INT32_MAX));
    }
  }
  if (used < std::size(field)) field[used] = -1;
}

int64_t WallClock() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// Field 22 of /proc/self/stat, in ticks since the machine started; 0 if it cannot be read.
int64_t OwnStartTime() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  size_t at = text.rfind(')');  // the program's name before it may hold anything
  if (at == std::string::npos) return 0;
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoll(text.c_str() + at, nullptr, 10);
}

int64_t OwnPidSpace() {
  struct stat status{};
  return stat("/proc/self/ns/pid", &status) == 0 ? static_cast<int64_t>(status.st_ino) : 0;
}

// Of a counter that one thread at a time writes.
template <typename T>
void Add(std::atomic<T>& counter, T more) {
  counter.store(counter.load(kRelaxed) + more, kRelaxed);
}

// The next entry is written to the slot after this one, which nobody has used for a long time: it
// is fetched into the cache meanwhile.
template <typename T>
void FetchSlot(T* slot) {
  for (size_t at = 0; at < sizeof(T); at += 64) {
    __builtin_prefetch(reinterpret_cast<char*>(slot) + at, 1);
  }
}

}  // namespace

Result<std::unique_ptr<Recorder>> Recorder::Create(const RecordIdentity& identity) {
  Result<std::unique_ptr<RecordMemory>> memory = RecordMemory::Create(identity.path, identity.size);
  if (!memory.ok()) return memory.status();
  RecordHeader& header = (*memory)->header();
  header.rank = identity.rank;
  header.local_rank = identity.local_rank;
  header.pid = static_cast<int32_t>(getpid());
  header.pid_started = OwnStartTime();
  header.pid_space = OwnPidSpace();
  header.generation = ++generations;
  header.started_wall = WallClock();
  header.started_monotonic = MonotonicNow();
  CopyText(identity.boot, header.boot);
  CopyText(identity.host, header.host);
  CopyText(identity.job, header.job);
  header.stall_shutdown = identity.stall_shutdown;
  header.heartbeat_timeout = identity.heartbeat_timeout;
  header.awake = header.started_monotonic;
  header.step = -1;
  header.state = static_cast<int32_t>(RankState::kRunning);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header.magic, kRecordMagic, sizeof(kRecordMagic));
  return std::unique_ptr<Recorder>(new Recorder(std::move(*memory)));
}

uint64_t Recorder::Submitted(const Request& request, int64_t bytes, uint8_t flags, uint64_t attempt,
                             TimePoint now) {
  uint64_t number = header().calls.load(kRelaxed) + 1;
  for (int tries = 0; tries < kSlotTries; ++tries) {
    const CallRecord& slot = memory_->call(number + tries);
    if (slot.number.load(kRelaxed) != 0 && slot.ended.load(kRelaxed) == 0) continue;
    number += tries;
    break;
  }
  CallRecord& call = memory_->call(number);
  if (call.number.load(kRelaxed) != 0 && call.ended.load(kRelaxed) == 0) {
    Add<uint64_t>(header().overwritten, 1);
  }
  call.number.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  call.submitted = now;
  call.first_asked = call.second_last_asked = call.last_asked = 0;
  call.planned.store(0, kRelaxed);
  call.ended.store(0, kRelaxed);
  call.sequence.store(0, kRelaxed);
  call.attempt = attempt;
  call.bytes = bytes;
  call.last_rank = kNoRank;
  call.process_set = request.process_set;
  call.invocation = invocations_.Next(request.process_set, request.name);
  call.tensors = static_cast<uint32_t>(request.shapes.size());
  call.root = request.root;
  call.peer = request.peer;
  call.kind = static_cast<uint8_t>(request.kind);
  call.dtype = static_cast<uint8_t>(request.dtype);
  call.op = static_cast<uint8_t>(request.op);
  call.path = static_cast<uint8_t>(request.path);
  call.status.store(0, kRelaxed);
  call.flags = static_cast<uint8_t>(flags | (request.layout_hash != 0 ? CallRecord::kBucket : 0) |
                                    (request.in_run ? CallRecord::kInRun : 0) |
                                    (request.unnamed ? CallRecord::kUnnamed : 0) |
                                    (!request.refusal.empty() ? CallRecord::kRefused : 0));
  CopyShapes(request.shapes, call.shapes);
  CopyText(request.name, call.name);
  CopyText(request.call_site, call.call_site);
  call.number.store(number, std::memory_order_release);
  header().calls.store(number, std::memory_order_release);
  FetchSlot(&memory_->call(number + 1));
  return number;
}

void Recorder::Planned(uint64_t number, uint64_t sequence, const AskTimes& asked, TimePoint now) {
  CallRecord& call = memory_->call(number);
  if (number == 0 || call.number.load(kRelaxed) != number) return;
  if (SetAsked(number, asked)) CountLast(asked);
  call.sequence.store(sequence, kRelaxed);
  // A reader that sees it sees all of the above.
  call.planned.store(now, std::memory_order_release);
}

void Recorder::Entered(const std::vector<uint64_t>& numbers, const AskTimes& asked) {
  bool any = false;
  for (const uint64_t number : numbers) any |= SetAsked(number, asked);
  if (any) CountLast(asked);
}

// False if nobody has asked, or the call is not in the record any more.
bool Recorder::SetAsked(uint64_t number, const AskTimes& asked) {
  CallRecord& call = memory_->call(number);
  if (number == 0 || call.number.load(kRelaxed) != number || asked.last_rank == kNoRank) {
    return false;
  }
  call.first_asked = asked.first;
  call.second_last_asked = asked.second_last;
  call.last_asked = asked.last;
  // A reader that sees the rank sees the times.
  std::atomic_thread_fence(std::memory_order_release);
  call.last_rank = asked.last_rank;
  return true;
}

void Recorder::CountLast(const AskTimes& asked) {
  RankRecord& last = memory_->rank(asked.last_rank);
  Add<int64_t>(last.times, 1);
  if (asked.second_last > 0) Add<int64_t>(last.late, asked.last - asked.second_last);
  last.asked.store(asked.last, kRelaxed);
}

Recorder::Origin Recorder::OriginOf(uint64_t number) {
  const CallRecord& call = memory_->call(number);
  if (number == 0 || call.number.load(kRelaxed) != number) return {};
  return {std::string(call.call_site, strnlen(call.call_site, sizeof(call.call_site))),
          call.invocation};
}

void Recorder::Ended(uint64_t number, StatusCode status, TimePoint now) {
  if (number == 0) return;
  CallRecord& call = memory_->call(number);
  Add<int64_t>(header().ended, 1);
  if (status != StatusCode::kOk) Add<int64_t>(header().failed, 1);
  if (call.number.load(kRelaxed) != number) return;
  if (status == StatusCode::kOk) {
    Add(header().bytes, call.bytes);
  } else {
    call.status.store(static_cast<uint8_t>(status), kRelaxed);
  }
  call.ended.store(now, std::memory_order_release);
}

PlanMarks* Recorder::PlanQueued(const PlanRun& run, size_t tensors, int64_t bytes, TimePoint now) {
  const Plan& plan = run.plan;
  PlanRecord& record = memory_->plan(plan.sequence);
  record.sequence.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  record.queued = now;
  record.marks.started.store(0, kRelaxed);
  record.marks.launched.store(0, kRelaxed);
  record.marks.ended.store(0, kRelaxed);
  record.marks.waits_since.store(0, kRelaxed);
  record.bytes = bytes;
  record.process_set = plan.process_set;
  record.calls = static_cast<uint32_t>(run.calls.size());
  record.tensors = static_cast<uint32_t>(tensors);
  record.members = static_cast<uint32_t>(run.members.size());
  record.kind = static_cast<uint8_t>(plan.kind);
  record.dtype = static_cast<uint8_t>(plan.dtype);
  record.op = static_cast<uint8_t>(plan.op);
  record.path = static_cast<uint8_t>(plan.path);
  record.status.store(0, kRelaxed);
  record.sequence.store(plan.sequence, std::memory_order_release);
  Add<uint64_t>(header().plans, 1);
  FetchSlot(&memory_->plan(plan.sequence + 1));
  return &record.marks;
}

void Recorder::PlanLaunched(uint64_t sequence, TimePoint now) {
  PlanRecord& record = memory_->plan(sequence);
  if (record.sequence.load(kRelaxed) == sequence) record.marks.launched.store(now, kRelaxed);
}

void Recorder::PlanEnded(uint64_t sequence, StatusCode status, TimePoint now) {
  PlanRecord& record = memory_->plan(sequence);
  if (record.sequence.load(kRelaxed) != sequence) return;
  record.status.store(static_cast<uint8_t>(status), kRelaxed);
  record.marks.ended.store(now, std::memory_order_release);
}

void Recorder::Event(EventType type, StatusCode code, int64_t value, std::string_view text) {
  const uint64_t number = header().events.fetch_add(1) + 1;
  EventRecord& event = memory_->event(number);
  event.number.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  event.time = MonotonicNow();
  event.type = static_cast<int32_t>(type);
  event.code = static_cast<int32_t>(code);
  event.value = value;
  CopyText(text, event.text);
  event.number.store(number, std::memory_order_release);
}

void Recorder::Sent(int64_t bytes, int64_t cache_hits) {
  header().bytes_sent.store(bytes, kRelaxed);
  header().cache_hits.store(cache_hits, kRelaxed);
}

void Recorder::MarkStep(int64_t step, int64_t samples, int64_t input_nanoseconds) {
  RecordHeader& own = header();
  if (samples >= 0) own.samples.store(samples, kRelaxed);
  if (input_nanoseconds >= 0) own.input_time.store(input_nanoseconds, kRelaxed);
  if (step < 0) return;
  own.step_began.store(MonotonicNow(), kRelaxed);
  own.step.store(step, kRelaxed);
}

void Recorder::MarkFit(const FitMark& fit) {
  RecordHeader& own = header();
  own.callback_time.store(fit.callback_nanoseconds, kRelaxed);
  own.epoch.store(fit.epoch, kRelaxed);
  own.epochs.store(fit.epochs, kRelaxed);
  own.last_step.store(fit.last_step, kRelaxed);
  if (fit.loss.has_value()) own.loss.store(*fit.loss, kRelaxed);
  own.has_loss.store(fit.loss.has_value() ? 1 : 0, kRelaxed);
}

void Recorder::MarkMemory(const MemoryMark& memory) {
  RecordHeader& own = header();
  own.weights_memory.store(memory.weights, kRelaxed);
  own.states_memory.store(memory.states, kRelaxed);
  own.copies_memory.store(memory.copies, kRelaxed);
}

void Recorder::RemoveFile() {
  if (!memory_->path().empty()) unlink(memory_->path().c_str());
}

}  // namespace tfring
