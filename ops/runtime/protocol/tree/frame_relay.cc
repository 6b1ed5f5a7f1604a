#include "ops/runtime/protocol/tree/frame_relay.h"

#include <algorithm>
#include <utility>

#include "ops/runtime/protocol/message/wire.h"

namespace tfring {
namespace {

// Frames of at most so many bytes are sent as they are: a digest would save nothing.
constexpr size_t kInlineBytes = 48;
// A message to a neighbour that has so many bytes takes no further frame.
constexpr size_t kMaxMessageBytes = kMaxFrameBytes / 4;
// What rank 0 keeps of frames that it has seen.
constexpr size_t kMaxKnownBytes = 1 << 20;
constexpr size_t kMaxKnownFrames = 64;

}  // namespace

FrameRelay::FrameRelay(TreeTopology topology, Duration hold)
    : topology_(std::move(topology)),
      hold_(hold),
      child_announced_(topology_.children().size()),
      to_children_(topology_.children().size()) {}

TreeMessage* FrameRelay::Link::ForBytes(size_t more) {
  if (messages.empty() || bytes + more > kMaxMessageBytes) {
    messages.emplace_back();
    bytes = 0;
  }
  bytes += more;
  return &messages.back();
}

void FrameRelay::Fail(Rank from, const std::string& what) {
  if (dead_) return;
  dead_ = true;
  out_.fatal = Internal("rank " + std::to_string(from) + " broke the control tree at rank " +
                        std::to_string(topology_.rank()) + ": " + what);
}

void FrameRelay::Send(std::string frame, TimePoint now) {
  if (dead_) return;
  const Digest digest = DigestOf(frame);
  queue_.Add(
      {RankSet(topology_.rank()), digest, std::make_shared<const std::string>(std::move(frame))},
      now);
  PassOn(now);
}

void FrameRelay::Know(std::string frame, TimePoint now) {
  if (dead_) return;
  const Digest digest = DigestOf(frame);
  Learn(digest, std::make_shared<const std::string>(std::move(frame)));
  TakeRequests(now);
}

void FrameRelay::SendPlans(std::vector<std::pair<Rank, std::string>> frames) {
  MergeQueue merged;
  for (auto& [rank, bytes] : frames) {
    const Digest digest = DigestOf(bytes);
    merged.Add({RankSet(rank), digest, std::make_shared<const std::string>(std::move(bytes))}, 0);
  }
  while (!merged.empty()) {
    MergedFrame frame = merged.TakeFront().frame;
    Deliver({std::move(frame.ranks), std::move(frame.bytes)});
  }
}

void FrameRelay::OnMessage(Rank from, std::string_view message, TimePoint now) {
  if (dead_) return;
  const int child = topology_.PositionOf(from);
  if (child < 0 && (from != topology_.parent() || from == kNoRank)) {
    return Fail(from, "it is neither its parent nor its child");
  }
  const RankRange subtree =
      child < 0 ? topology_.subtree() : topology_.children()[static_cast<size_t>(child)];
  Result<TreeMessage> decoded = DecodeTreeMessage(message, subtree, child >= 0);
  if (!decoded.ok()) return Fail(from, decoded.status().message());
  if (child >= 0) {
    for (const auto& [number, bytes] : decoded->wanted_bytes) {
      OnWantedBytes(static_cast<size_t>(child), number, bytes);
    }
    OnMerged(static_cast<size_t>(child), std::move(decoded->merged), now);
    return PassOn(now);
  }
  for (const PlanFrame& frame : decoded->plans) Deliver(frame);
  for (uint64_t number : decoded->wanted) OnWanted(number);
  for (uint64_t number : decoded->released) OnReleased(number);
}

void FrameRelay::OnMerged(size_t child, std::vector<MergedFrame> frames, TimePoint now) {
  for (MergedFrame& frame : frames) {
    const bool announced = frame.bytes == nullptr;
    if (topology_.parent() == kNoRank) {
      if (announced) {
        frame.bytes = Known(frame.digest);
      } else {
        Learn(frame.digest, frame.bytes);
      }
    }
    MergeQueue::Entry* entry = queue_.Add(std::move(frame), now);
    if (announced) entry->sources.push_back({child, ++child_announced_[child]});
  }
}

// The bytes that a child was asked for: they go where they are needed, and nobody else's are.
void FrameRelay::OnWantedBytes(size_t child, uint64_t number, const FrameBytes& bytes) {
  const Rank from = topology_.children()[child].begin;
  const auto asked = asked_.find({child, number});
  if (asked == asked_.end()) return Fail(from, "it sends bytes that nobody asked for");
  const Asked what = asked->second;
  asked_.erase(asked);
  if (!(DigestOf(*bytes) == what.digest)) return Fail(from, "its bytes have another digest");
  if (topology_.parent() == kNoRank) return Learn(what.digest, bytes);
  const auto waiting = announced_.find(what.announced);
  to_parent_.ForBytes(bytes->size())->wanted_bytes.emplace_back(what.announced, bytes);
  Release(waiting->second.sources);
  announced_.erase(waiting);
}

void FrameRelay::OnWanted(uint64_t number) {
  const auto found = announced_.find(number);
  if (found == announced_.end() || found->second.wanted) {
    return Fail(topology_.parent(), "it wants a frame that was not announced or was answered");
  }
  Announced& announced = found->second;
  if (announced.bytes == nullptr) {
    announced.wanted = true;
    return AskFirst(&announced.sources, {announced.digest, number});
  }
  to_parent_.ForBytes(announced.bytes->size())->wanted_bytes.emplace_back(number, announced.bytes);
  Release(announced.sources);
  announced_.erase(found);
}

void FrameRelay::OnReleased(uint64_t number) {
  const auto found = announced_.find(number);
  if (found == announced_.end() || found->second.wanted) {
    return Fail(topology_.parent(), "it releases a frame that was not announced or was answered");
  }
  Release(found->second.sources);
  announced_.erase(found);
}

// Here, and to the children that have ranks of the frame below them.
void FrameRelay::Deliver(const PlanFrame& frame) {
  if (frame.ranks.Contains(topology_.rank())) out_.plans.push_back(frame.bytes);
  for (size_t child = 0; child < to_children_.size(); ++child) {
    RankSet below = frame.ranks.In(topology_.children()[child]);
    if (below.empty()) continue;
    to_children_[child]
        .ForBytes(frame.bytes->size())
        ->plans.push_back({std::move(below), frame.bytes});
  }
}

void FrameRelay::OnTime(TimePoint now) {
  if (!dead_) PassOn(now);
}

void FrameRelay::PassOn(TimePoint now) {
  if (dead_) return;
  if (topology_.parent() == kNoRank) return TakeRequests(now);
  const RankRange subtree = topology_.subtree();
  size_t complete = queue_.CountComplete(subtree.end - subtree.begin);
  while (!queue_.empty() && (complete > 0 || queue_.front().since + hold_ <= now)) {
    if (complete > 0) --complete;
    Announce(queue_.TakeFront());
  }
}

void FrameRelay::Announce(MergeQueue::Entry entry) {
  const FrameBytes bytes = entry.frame.bytes;
  if (bytes != nullptr) Release(std::exchange(entry.sources, {}));
  if (bytes != nullptr && bytes->size() <= kInlineBytes) {
    to_parent_.ForBytes(bytes->size())->merged.push_back(std::move(entry.frame));
    return;
  }
  announced_[++last_announced_] = {entry.frame.digest, bytes, std::move(entry.sources), false};
  entry.frame.bytes = nullptr;
  to_parent_.ForBytes(kInlineBytes)->merged.push_back(std::move(entry.frame));
}

// Rank 0: takes the frames from the front whose bytes are known, and asks for others.
void FrameRelay::TakeRequests(TimePoint now) {
  const RankRange subtree = topology_.subtree();
  const size_t complete = queue_.CountComplete(subtree.end - subtree.begin - 1);
  for (size_t i = 0; i < queue_.size(); ++i) {
    MergeQueue::Entry& entry = queue_.at(i);
    if (entry.frame.bytes != nullptr || entry.wanted) continue;
    if (i >= complete && entry.since + hold_ > now) continue;
    entry.wanted = true;
    AskFirst(&entry.sources, {entry.frame.digest, 0});
  }
  while (!queue_.empty() && queue_.front().frame.bytes != nullptr) {
    MergeQueue::Entry entry = queue_.TakeFront();
    Release(entry.sources);
    out_.requests.push_back(std::move(entry.frame));
  }
}

// The bytes of a frame have come, perhaps for several that wait for them.
void FrameRelay::Learn(const Digest& digest, const FrameBytes& bytes) {
  for (size_t i = 0; i < queue_.size(); ++i) {
    MergedFrame& frame = queue_.at(i).frame;
    if (frame.digest == digest) frame.bytes = bytes;
  }
  if (Known(digest) != nullptr) return;
  known_.emplace_back(digest, bytes);
  known_bytes_ += bytes->size();
  while (known_bytes_ > kMaxKnownBytes || known_.size() > kMaxKnownFrames) {
    known_bytes_ -= known_.front().second->size();
    known_.pop_front();
  }
}

FrameBytes FrameRelay::Known(const Digest& digest) const {
  for (const auto& [known, bytes] : known_) {
    if (known == digest) return bytes;
  }
  return nullptr;
}

void FrameRelay::AskFirst(std::vector<Source>* sources, Asked what) {
  const Source asked = sources->front();
  sources->erase(sources->begin());
  to_children_[asked.child].ForBytes(kInlineBytes)->wanted.push_back(asked.number);
  asked_[{asked.child, asked.number}] = what;
}

// Costs no message of its own: the answers go with what is sent to the child next.
void FrameRelay::Release(const std::vector<Source>& sources) {
  for (const Source& source : sources) {
    to_children_[source.child].released.push_back(source.number);
  }
}

TimePoint FrameRelay::next_deadline() const {
  if (dead_) return kNever;
  const bool root = topology_.parent() == kNoRank;
  for (size_t i = 0; i < queue_.size(); ++i) {
    const MergeQueue::Entry& entry = queue_.at(i);
    const bool waits = !root || (entry.frame.bytes == nullptr && !entry.wanted);
    if (waits) return entry.since + hold_;
  }
  return kNever;
}

FrameRelay::Output FrameRelay::Drain() {
  if (!dead_) {
    for (const TreeMessage& message : std::exchange(to_parent_.messages, {})) {
      out_.messages.emplace_back(topology_.parent(),
                                 EncodeTreeMessage(message, topology_.subtree()));
    }
    for (size_t child = 0; child < to_children_.size(); ++child) {
      Link& link = to_children_[child];
      const RankRange subtree = topology_.children()[child];
      if (!link.messages.empty()) {
        link.messages.back().released = std::exchange(link.released, {});
      }
      for (const TreeMessage& message : std::exchange(link.messages, {})) {
        out_.messages.emplace_back(subtree.begin, EncodeTreeMessage(message, subtree));
      }
    }
  }
  return std::exchange(out_, Output());
}

}  // namespace tfring
