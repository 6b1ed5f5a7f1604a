#ifndef TFRING_TESTS_FAKES_CUDA_STREAM_H_
#define TFRING_TESTS_FAKES_CUDA_STREAM_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "tests/fakes/cuda/driver_types.h"

namespace fake_cuda {

class Device;

// One record of an event: set when its stream has come to it, or has dropped it because the device
// broke. Thread-safe.
class Mark {
 public:
  void Set();
  bool IsSet() const;
  void Wait() const;
  // Whether it was set within this time.
  bool WaitFor(std::chrono::milliseconds time) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable set_;
  bool value_ = false;  // guarded by mutex_
};

// What a stream does in its turn.
struct Work {
  enum class Kind { kTask, kHostFunction, kRecord, kWait };

  Kind kind = Kind::kTask;      // a task is a copy, memset or kernel
  std::function<void()> begin;  // before the delay: poisons what the task will write; may be empty
  std::function<void()> run;
  std::shared_ptr<Mark> mark;  // of a record: what to set; of a wait: what to wait for
};

// A queue of work and the thread that does it, late. The thread ends after Close, when the queue is
// empty, and keeps the stream alive until then. Thread-safe.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  static std::shared_ptr<Stream> Start(Device* device, int priority, unsigned flags);

  Device* device() const { return device_; }
  int priority() const { return priority_; }
  unsigned flags() const { return flags_; }

  void Push(Work work);
  bool IsIdle() const;
  void Close();

  // A mark that is set when all work that is on the stream now has been done or dropped.
  std::shared_ptr<Mark> MarkEnd();

 private:
  Stream(Device* device, int priority, unsigned flags);
  void Loop();
  bool Take(Work* work);
  void Do(const Work& work);
  void Finish(const Work& work);
  void Sleep(long us) const;
  long Delay(Work::Kind kind);

  Device* const device_;
  const int priority_;
  const unsigned flags_;
  const uint64_t number_;    // of all streams of the process, for the random delays
  uint64_t operations_ = 0;  // used by the stream's thread alone
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;  // guarded by mutex_
  bool busy_ = false;       // guarded by mutex_
  bool closed_ = false;     // guarded by mutex_
  bool ended_ = false;      // guarded by mutex_; the thread takes nothing any more
};

// The last record of an event. Thread-safe.
class Event {
 public:
  explicit Event(Device* device) : device_(device) {}

  Device* device() const { return device_; }
  // Null if it was never recorded.
  std::shared_ptr<Mark> Last() const;
  void SetLast(std::shared_ptr<Mark> mark);

 private:
  Device* const device_;
  mutable std::mutex mutex_;
  std::shared_ptr<Mark> last_;  // guarded by mutex_
};

}  // namespace fake_cuda

#endif  // TFRING_TESTS_FAKES_CUDA_STREAM_H_
