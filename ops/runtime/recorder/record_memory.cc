#include "ops/runtime/recorder/record_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

namespace tfring {
namespace {

size_t BytesFor(int size) {
  return sizeof(RecordHeader) + kCallSlots * sizeof(CallRecord) + kPlanSlots * sizeof(PlanRecord) +
         kEventSlots * sizeof(EventRecord) + static_cast<size_t>(size) * sizeof(RankRecord);
}

Status Failure(const std::string& path, const char* what, int error) {
  return Unavailable("the record " + path + ": " + what + ": " +
                     std::generic_category().message(error));
}

}  // namespace

Result<std::unique_ptr<RecordMemory>> RecordMemory::Create(const std::string& path, int size) {
  const size_t bytes = BytesFor(size);
  int fd = -1;
  if (!path.empty()) {
    unlink(path.c_str());  // of an earlier generation, which a reader may still have open
    fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return Failure(path, "open", errno);
    const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    if (error != 0) {
      close(fd);
      unlink(path.c_str());
      return Failure(path, "there is no room for it", error);
    }
  }
  const int flags = path.empty() ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  const int error = errno;
  if (fd >= 0) close(fd);
  if (base == MAP_FAILED) return Failure(path, "mmap", error);
  madvise(base, bytes, MADV_DONTFORK);
  return std::unique_ptr<RecordMemory>(new RecordMemory(path, base, bytes, size));
}

RecordMemory::RecordMemory(std::string path, void* base, size_t bytes, int size)
    : path_(std::move(path)), base_(base), bytes_(bytes) {
  RecordHeader& made = *new (base_) RecordHeader();
  for (size_t i = 0; i < kCallSlots; ++i) new (calls() + i) CallRecord();
  for (size_t i = 0; i < kPlanSlots; ++i) new (plans() + i) PlanRecord();
  for (size_t i = 0; i < kEventSlots; ++i) new (events() + i) EventRecord();
  for (int i = 0; i < size; ++i) new (ranks() + i) RankRecord();
  made.version = kRecordVersion;
  made.header_bytes = sizeof(RecordHeader);
  made.call_bytes = sizeof(CallRecord);
  made.call_slots = kCallSlots;
  made.plan_bytes = sizeof(PlanRecord);
  made.plan_slots = kPlanSlots;
  made.event_bytes = sizeof(EventRecord);
  made.event_slots = kEventSlots;
  made.rank_bytes = sizeof(RankRecord);
  made.rank_slots = static_cast<uint32_t>(size);
  made.size = size;
}

RecordMemory::~RecordMemory() { munmap(base_, bytes_); }

}  // namespace tfring
