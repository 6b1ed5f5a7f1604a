#include "tests/fakes/nccl/kernel_run.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>

#include "tests/fakes/nccl/settings.h"
#include "tests/fakes/nccl/values.h"

namespace fake_nccl {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr uint64_t kRegion = uint64_t{1} << 36;  // of a file: for collectives, then per receiver

// Ranks that call different things would hang or mix up memory; here they are told, and hang.
void Mismatch(Communicator* communicator, const std::string& what) {
  Count("mismatches");
  Say("%s", what.c_str());
  communicator->SetError(ncclInvalidUsage, what);
  communicator->Spin();
}

class CollectiveRun {
 public:
  CollectiveRun(Communicator* communicator, const Call& call, int position, int of)
      : communicator_(communicator),
        meeting_(communicator->rendezvous()),
        call_(call),
        element_(ElementBytes(call.dtype)),
        ranks_(static_cast<size_t>(communicator->nranks())) {
    signature_.function = call.function;
    signature_.dtype = call.dtype;
    signature_.op = call.op;
    signature_.root = call.root;
    signature_.count = call.count;
    signature_.position = position;
    signature_.of = of;
  }

  // False if the communicator was aborted.
  bool operator()() {
    const size_t blocks = call_.function == kReduceScatter ? ranks_ : 1;
    const size_t step = std::max<size_t>(1, kPieceBytes / element_ / blocks);
    for (size_t first = 0; first < call_.count; first += step) {
      if (!Piece(first, std::min(step, call_.count - first))) return false;
    }
    return true;
  }

 private:
  using Progress = std::atomic<uint64_t> Slot::*;

  bool AllReach(Progress which, uint64_t round) {
    Pause pause;
    for (int r = 0; r < meeting_.nranks(); ++r) {
      while ((meeting_.slot(r).*which).load() < round) {
        if (!communicator_->GoOn()) return false;
        pause();
      }
    }
    return communicator_->GoOn();
  }

  bool Contributes() const {
    return call_.function != kBroadcast || communicator_->rank() == call_.root;
  }

  bool Receives() const { return call_.function != kReduce || communicator_->rank() == call_.root; }

  // Elements [first, first + n) of every block.
  bool Piece(size_t first, size_t n) {
    const uint64_t round = communicator_->NextRound();
    Slot& own = meeting_.slot(meeting_.rank());
    if (!AllReach(&Slot::taken, round - 1)) return false;
    own.signature = signature_;
    if (Contributes() && !Post(first, n)) {
      Mismatch(communicator_, "no room for the data of a collective");
      return false;
    }
    own.posted = round;
    if (!AllReach(&Slot::posted, round)) return false;
    for (int r = 0; r < meeting_.nranks(); ++r) {
      const Signature& other = meeting_.slot(r).signature;
      if (std::memcmp(&other, &signature_, sizeof(other)) == 0) continue;
      Mismatch(communicator_, "rank " + std::to_string(meeting_.rank()) + " calls " +
                                  Describe(signature_) + "; rank " + std::to_string(r) + " calls " +
                                  Describe(other));
      return false;
    }
    if (Receives() && !Fetch(first, n)) {
      Mismatch(communicator_, "the data of a collective cannot be read");
      return false;
    }
    own.taken = round;
    return true;
  }

  bool Post(size_t first, size_t n) {
    const size_t blocks = call_.function == kReduceScatter ? ranks_ : 1;
    std::vector<char> data(n * element_);
    for (size_t b = 0; b < blocks; ++b) {
      const char* from =
          static_cast<const char*>(call_.send) + (b * call_.count + first) * element_;
      std::memcpy(data.data(), View(from, data.size()), data.size());
      if (!meeting_.Write(data.data(), data.size(), b * data.size())) return false;
    }
    return true;
  }

  bool Fetch(size_t first, size_t n) {
    const size_t bytes = n * element_;
    char* to = static_cast<char*>(call_.receive) + first * element_;
    if (call_.function == kBroadcast) return meeting_.Read(call_.root, View(to, bytes), bytes, 0);
    if (call_.function == kAllGather) {
      for (int r = 0; r < meeting_.nranks(); ++r) {
        char* block = to + static_cast<size_t>(r) * call_.count * element_;
        if (!meeting_.Read(r, View(block, bytes), bytes, 0)) return false;
      }
      return true;
    }
    return Reduce(to, first, n);
  }

  // The sum of each of the ring's blocks begins at another rank.
  bool Reduce(char* to, size_t first, size_t n) {
    const size_t per_block = (call_.count + ranks_ - 1) / ranks_;
    for (size_t at = first; at < first + n;) {
      const size_t block = at / per_block;
      const size_t end = std::min(first + n, (block + 1) * per_block);
      const size_t skipped = (at - first) * element_;
      if (!ReduceBlock(to + skipped, skipped, n, end - at, block + 1)) return false;
      at = end;
    }
    return true;
  }

  // `count` of the piece's n elements, the sum from rank `begin` on.
  bool ReduceBlock(char* to, size_t skipped, size_t n, size_t count, size_t begin) {
    const size_t bytes = count * element_;
    const uint64_t piece = call_.function == kReduceScatter
                               ? static_cast<uint64_t>(meeting_.rank()) * n * element_
                               : 0;
    std::vector<char> sum(bytes);
    std::vector<char> other(bytes);
    for (size_t i = 0; i < ranks_; ++i) {
      const int from = static_cast<int>((begin + i) % ranks_);
      char* const data = i == 0 ? sum.data() : other.data();
      if (!meeting_.Read(from, data, bytes, piece + skipped)) return false;
      if (i > 0) Combine(call_.dtype, call_.op, sum.data(), other.data(), count);
    }
    std::memcpy(View(to, bytes), sum.data(), bytes);
    return true;
  }

  Communicator* const communicator_;
  Rendezvous& meeting_;
  const Call& call_;
  const size_t element_;
  const size_t ranks_;
  Signature signature_;
};

// One side of a transfer between two ranks, in pieces. A transfer of no bytes is one empty piece.
struct Transfer {
  const Call* call = nullptr;
  size_t moved = 0;
  bool done = false;
};

class TransferRun {
 public:
  TransferRun(Communicator* communicator, const std::vector<Call>& calls)
      : communicator_(communicator),
        meeting_(communicator->rendezvous()),
        sends_(calls_of()),
        receives_(calls_of()) {
    for (const Call& call : calls) {
      if (call.function == kSend)
        sends_[static_cast<size_t>(call.root)].push_back({&call, 0, false});
      if (call.function == kReceive) {
        receives_[static_cast<size_t>(call.root)].push_back({&call, 0, false});
      }
    }
  }

  void operator()() {
    Pause pause;
    for (bool left = true; left; pause()) {
      left = false;
      for (size_t peer = 0; peer < sends_.size(); ++peer) {
        if (!sends_[peer].empty() && !Send(static_cast<int>(peer))) return;
        if (!receives_[peer].empty() && !Receive(static_cast<int>(peer))) return;
        left = left || !sends_[peer].empty() || !receives_[peer].empty();
      }
      if (left && !communicator_->GoOn()) return;
    }
  }

 private:
  using Queue = std::deque<Transfer>;  // to or from one peer, in order

  std::vector<Queue> calls_of() const {
    return std::vector<Queue>(static_cast<size_t>(communicator_->nranks()));
  }

  uint64_t Offset(int receiver) const { return kRegion * static_cast<uint64_t>(1 + receiver); }

  bool Send(int peer) {
    Transfer& transfer = sends_[static_cast<size_t>(peer)].front();
    Channel& channel = meeting_.slot(meeting_.rank()).to[peer];
    const uint64_t sent = channel.sent;
    if (channel.received != sent) return true;
    if (transfer.done) {  // the last piece has been taken
      sends_[static_cast<size_t>(peer)].pop_front();
      return true;
    }
    const size_t total = transfer.call->count * ElementBytes(transfer.call->dtype);
    const size_t n = std::min(kPieceBytes, total - transfer.moved);
    channel.total_bytes = total;
    channel.dtype = transfer.call->dtype;
    const char* from = static_cast<const char*>(transfer.call->send) + transfer.moved;
    if (n > 0 && !meeting_.Write(View(from, n), n, Offset(peer))) {
      Mismatch(communicator_, "no room for the data of a send");
      return false;
    }
    transfer.moved += n;
    transfer.done = transfer.moved == total;
    channel.sent = sent + 1;
    return true;
  }

  bool Receive(int peer) {
    Transfer& transfer = receives_[static_cast<size_t>(peer)].front();
    Channel& channel = meeting_.slot(peer).to[meeting_.rank()];
    if (channel.sent == channel.received) return true;
    const size_t total = transfer.call->count * ElementBytes(transfer.call->dtype);
    if (channel.total_bytes != total || channel.dtype != transfer.call->dtype) {
      Mismatch(communicator_,
               "rank " + std::to_string(peer) + " sends " + std::to_string(channel.total_bytes) +
                   " bytes of " + DataTypeName(channel.dtype) + " to rank " +
                   std::to_string(meeting_.rank()) + ", which receives " + std::to_string(total) +
                   " of " + DataTypeName(transfer.call->dtype));
      return false;
    }
    const size_t n = std::min(kPieceBytes, total - transfer.moved);
    char* to = static_cast<char*>(transfer.call->receive) + transfer.moved;
    if (n > 0 && !meeting_.Read(peer, View(to, n), n, Offset(meeting_.rank()))) {
      Mismatch(communicator_, "the data of a send cannot be read");
      return false;
    }
    transfer.moved += n;
    channel.received = channel.received + 1;
    if (transfer.moved == total) receives_[static_cast<size_t>(peer)].pop_front();
    return true;
  }

  Communicator* const communicator_;
  Rendezvous& meeting_;
  std::vector<Queue> sends_;
  std::vector<Queue> receives_;
};

}  // namespace

void RunCalls(Communicator* communicator, const std::vector<Call>& calls) {
  const auto is_transfer = [](const Call& call) {
    return call.function == kSend || call.function == kReceive;
  };
  const auto transfers = std::count_if(calls.begin(), calls.end(), is_transfer);
  const int collectives = static_cast<int>(calls.size()) - static_cast<int>(transfers);
  int position = 0;
  for (const Call& call : calls) {
    if (is_transfer(call)) continue;
    if (!CollectiveRun(communicator, call, position++, collectives)()) return;
  }
  if (transfers > 0) TransferRun(communicator, calls)();
}

}  // namespace fake_nccl
