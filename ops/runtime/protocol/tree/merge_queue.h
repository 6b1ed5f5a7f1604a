#ifndef TFRING_OPS_RUNTIME_PROTOCOL_TREE_MERGE_QUEUE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_TREE_MERGE_QUEUE_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/tree/rank_set.h"
#include "ops/runtime/protocol/tree/tree_message.h"

namespace tfring {

// Frames that wait to be passed on. Equal frames of different ranks become one; the frames of each
// rank stay in their order: a frame is merged with one that stands behind all that its ranks have
// in the queue, or comes last. Passing frames on from the front therefore never lets a frame
// overtake another of the same rank. Part of the FrameRelay.
class MergeQueue {
 public:
  // The child that has announced the frame, and under which number.
  struct Source {
    size_t child = 0;  // position in TreeTopology::children
    uint64_t number = 0;
  };
  struct Entry {
    MergedFrame frame;
    std::vector<Source> sources;  // that have not been answered
    TimePoint since = 0;          // when the first of it came
    bool wanted = false;          // a source has been asked for the bytes
  };

  // Returns the entry that the frame is part of; it stays where it is until another is taken.
  Entry* Add(MergedFrame frame, TimePoint now);

  // How many entries from the front have nothing to wait for, where `ranks` ranks add frames: all,
  // if each rank has one frame here; else those that cannot grow, because each rank has a frame in
  // the last of them or behind it.
  size_t CountComplete(int64_t ranks) const;

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  Entry& front() { return entries_.front(); }
  const Entry& front() const { return entries_.front(); }
  Entry& at(size_t position) { return entries_[position]; }
  const Entry& at(size_t position) const { return entries_[position]; }
  Entry TakeFront();

 private:
  std::deque<Entry> entries_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_TREE_MERGE_QUEUE_H_
