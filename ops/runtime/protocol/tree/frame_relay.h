#ifndef TFRING_OPS_RUNTIME_PROTOCOL_TREE_FRAME_RELAY_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_TREE_FRAME_RELAY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/tree/merge_queue.h"
#include "ops/runtime/protocol/tree/tree_message.h"
#include "ops/runtime/protocol/tree/tree_topology.h"

namespace tfring {

// Carries control frames between rank 0 and all others over a tree, where a star has a connection
// from each rank to rank 0. What a frame says is not looked at. For the negotiators at both ends it
// is as if there were a star: every frame arrives once, and those of one rank in its order.
//
// Towards rank 0 equal frames of a subtree are merged: a rank keeps a frame until all ranks below
// it have sent something as late or, if they do not, for `hold`. Then it announces the frame to its
// parent, by a digest and the ranks that have sent it. Rank 0 needs the bytes, and mostly knows
// them: it has made the same calls, or seen the frame before. Those of other frames it asks for
// after `hold`, and the question goes down to a rank that has them. From rank 0, equal frames go
// once over each connection.
//
// Pure: no thread, socket or clock. One for each rank. It is not part of the engine yet: the
// simulator drives it (ops/sim/control).
class FrameRelay {
 public:
  struct Output {
    std::vector<std::pair<Rank, std::string>> messages;  // to the parent or children, in order
    std::vector<FrameBytes> plans;                       // frames of rank 0 for this rank
    std::vector<MergedFrame> requests;                   // on rank 0: frames of the others
    Status fatal;                                        // not ok: a neighbour broke the protocol
  };

  FrameRelay(TreeTopology topology, Duration hold);

  // A frame of this rank, which is not rank 0, for rank 0.
  void Send(std::string frame, TimePoint now);

  // On rank 0: a frame that it would send itself, if it were another rank.
  void Know(std::string frame, TimePoint now);

  // On rank 0: frames for other ranks, in the order in which each has to get them.
  void SendPlans(std::vector<std::pair<Rank, std::string>> frames);

  // A message of the parent or of a child.
  void OnMessage(Rank from, std::string_view message, TimePoint now);

  // Passes on what has been kept for long enough.
  void OnTime(TimePoint now);
  TimePoint next_deadline() const;

  // Hands over, and forgets, what the calls since the last Drain produced.
  Output Drain();

  // Frames whose bytes this rank keeps, or knows a child to keep, for its parent.
  size_t announced() const { return announced_.size(); }
  const TreeTopology& topology() const { return topology_; }

 private:
  using Source = MergeQueue::Source;
  struct Announced {
    Digest digest;
    FrameBytes bytes;             // null: a source has them
    std::vector<Source> sources;  // that have not been answered
    bool wanted = false;          // by the parent; a source has been asked
  };
  // A source that has been asked for bytes.
  struct Asked {
    Digest digest;
    uint64_t announced = 0;  // the number that waits for them in announced_; 0 on rank 0
  };
  // Messages to one neighbour; a new one begins when the last is big enough.
  struct Link {
    std::vector<TreeMessage> messages;
    size_t bytes = 0;  // of the last, about
    std::vector<uint64_t> released;
    TreeMessage* ForBytes(size_t more);
  };

  void Fail(Rank from, const std::string& what);
  void OnMerged(size_t child, std::vector<MergedFrame> frames, TimePoint now);
  void OnWantedBytes(size_t child, uint64_t number, const FrameBytes& bytes);
  void OnWanted(uint64_t number);
  void OnReleased(uint64_t number);
  void Deliver(const PlanFrame& frame);
  void PassOn(TimePoint now);
  void Announce(MergeQueue::Entry entry);
  void TakeRequests(TimePoint now);
  void Learn(const Digest& digest, const FrameBytes& bytes);
  FrameBytes Known(const Digest& digest) const;
  void AskFirst(std::vector<Source>* sources, Asked what);
  void Release(const std::vector<Source>& sources);

  const TreeTopology topology_;
  const Duration hold_;
  MergeQueue queue_;
  std::map<uint64_t, Announced> announced_;  // to the parent, by number; not answered
  uint64_t last_announced_ = 0;
  std::vector<uint64_t> child_announced_;               // the last number of each child
  std::map<std::pair<size_t, uint64_t>, Asked> asked_;  // by child and number
  std::deque<std::pair<Digest, FrameBytes>> known_;  // on rank 0: the latest frames, oldest first
  size_t known_bytes_ = 0;
  Link to_parent_;
  std::vector<Link> to_children_;
  Output out_;
  bool dead_ = false;  // there was a fatal status
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_TREE_FRAME_RELAY_H_
