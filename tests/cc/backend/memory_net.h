#ifndef TFRING_TESTS_CC_BACKEND_MEMORY_NET_H_
#define TFRING_TESTS_CC_BACKEND_MEMORY_NET_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/interfaces/data_transport.h"

namespace tfring::testing {

// Streams between the ranks of a test, in memory, that move a random part of what they are asked
// to, or nothing: whatever a socket may do. Thread-safe; outlives its endpoints.
class MemoryNet {
 public:
  struct Options {
    uint32_t seed = 1;
    int64_t capacity = 64 << 10;  // of a stream
    bool peek = false;
    std::function<bool(Rank, Rank)> connected = [](Rank, Rank) { return true; };
  };

  explicit MemoryNet(Options options) : options_(std::move(options)), random_(options_.seed) {}

  std::unique_ptr<DataTransport> Endpoint(Rank rank) { return std::make_unique<End>(this, rank); }

  // From now on everything to and from `rank` fails.
  void Break(Rank rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_.insert(rank);
    changed_.notify_all();
  }

  void WaitForBytes(int64_t bytes) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return moved_ >= bytes; });
  }

 private:
  struct Stream {
    std::string bytes;
    size_t begin = 0;
    int64_t size() const { return static_cast<int64_t>(bytes.size() - begin); }
  };

  class End final : public DataTransport {
   public:
    End(MemoryNet* net, Rank self) : net_(net), self_(self) {}
    bool Connected(Rank peer) const override {
      return peer != self_ && net_->options_.connected(self_, peer);
    }
    Result<int64_t> TrySend(Rank to, const struct iovec* iov, int count) override {
      return net_->Send(self_, to, iov, count, &sent_);
    }
    Result<int64_t> TryRecv(Rank from, const struct iovec* iov, int count) override {
      return net_->Recv(from, self_, iov, count);
    }
    bool CanPeek(Rank) const override { return net_->options_.peek; }
    Result<struct iovec> Peek(Rank from) override { return net_->Peek(from, self_, &view_); }
    void Consume(Rank from, int64_t bytes) override { net_->Consume(from, self_, bytes); }
    void Wait(const std::vector<Rank>& readable, const std::vector<Rank>& writable) override {
      net_->Wait(self_, readable, writable, &interrupted_);
    }
    void Interrupt() override {
      std::lock_guard<std::mutex> lock(net_->mutex_);
      interrupted_ = true;
      net_->changed_.notify_all();
    }
    int64_t bytes_sent() const override { return sent_; }
    void Close(TimePoint) override {}

   private:
    MemoryNet* const net_;
    const Rank self_;
    bool interrupted_ = false;  // guarded by net_->mutex_
    std::atomic<int64_t> sent_{0};
    std::string view_;
  };

  Status Check(Rank self, Rank peer) {
    if (broken_.count(peer) == 0 && broken_.count(self) == 0) return OkStatus();
    return Unavailable("rank " + std::to_string(peer) + ": connection closed");
  }

  // Between nothing and all, each often.
  int64_t Part(int64_t most) {
    switch (random_() % 4) {
      case 0:
        return 0;
      case 1:
        return most;
      default:
        return most <= 0 ? 0 : static_cast<int64_t>(random_() % static_cast<uint64_t>(most)) + 1;
    }
  }

  Result<int64_t> Send(Rank from, Rank to, const struct iovec* iov, int count,
                       std::atomic<int64_t>* sent) {
    std::lock_guard<std::mutex> lock(mutex_);
    Status status = Check(from, to);
    if (!status.ok()) return status;
    Stream& stream = streams_[{from, to}];
    int64_t left = Part(options_.capacity - stream.size());
    int64_t moved = 0;
    for (int i = 0; i < count && left > 0; ++i) {
      const int64_t part = std::min(left, static_cast<int64_t>(iov[i].iov_len));
      stream.bytes.append(static_cast<const char*>(iov[i].iov_base), static_cast<size_t>(part));
      moved += part;
      left -= part;
    }
    *sent += moved;
    moved_ += moved;
    changed_.notify_all();
    return moved;
  }

  Result<int64_t> Recv(Rank from, Rank to, const struct iovec* iov, int count) {
    std::lock_guard<std::mutex> lock(mutex_);
    Status status = Check(to, from);
    if (!status.ok()) return status;
    Stream& stream = streams_[{from, to}];
    int64_t left = Part(stream.size());
    int64_t moved = 0;
    for (int i = 0; i < count && left > 0; ++i) {
      const int64_t part = std::min(left, static_cast<int64_t>(iov[i].iov_len));
      std::memcpy(iov[i].iov_base, stream.bytes.data() + stream.begin, static_cast<size_t>(part));
      stream.begin += static_cast<size_t>(part);
      moved += part;
      left -= part;
    }
    Trim(&stream);
    changed_.notify_all();
    return moved;
  }

  Result<struct iovec> Peek(Rank from, Rank to, std::string* view) {
    std::lock_guard<std::mutex> lock(mutex_);
    Status status = Check(to, from);
    if (!status.ok()) return status;
    const Stream& stream = streams_[{from, to}];
    *view = stream.bytes.substr(stream.begin, static_cast<size_t>(Part(stream.size())));
    return iovec{view->data(), view->size()};
  }

  void Consume(Rank from, Rank to, int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    Stream& stream = streams_[{from, to}];
    stream.begin += static_cast<size_t>(bytes);
    Trim(&stream);
    changed_.notify_all();
  }

  static void Trim(Stream* stream) {
    if (stream->begin == stream->bytes.size()) {
      stream->bytes.clear();
      stream->begin = 0;
    }
  }

  void Wait(Rank self, const std::vector<Rank>& readable, const std::vector<Rank>& writable,
            const bool* interrupted) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] {
      if (*interrupted) return true;
      for (Rank peer : readable) {
        if (!Check(self, peer).ok() || streams_[{peer, self}].size() > 0) return true;
      }
      for (Rank peer : writable) {
        if (!Check(self, peer).ok() || streams_[{self, peer}].size() < options_.capacity) {
          return true;
        }
      }
      return false;
    });
  }

  const Options options_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::mt19937 random_;
  std::map<std::pair<Rank, Rank>, Stream> streams_;
  std::set<Rank> broken_;
  int64_t moved_ = 0;
};

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_BACKEND_MEMORY_NET_H_
