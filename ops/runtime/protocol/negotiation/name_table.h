#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NAME_TABLE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NAME_TABLE_H_

#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "ops/runtime/base/types.h"

namespace tfring {

// Values by process set and tensor name: the same name may be used in two sets at once. Pointers to
// values stay valid until the value is erased. One thread.
template <typename T>
class NameTable {
 public:
  T* Find(ProcessSetId set, const std::string& name) {
    const auto by_name = sets_.find(set);
    if (by_name == sets_.end()) return nullptr;
    const auto it = by_name->second.find(name);
    return it == by_name->second.end() ? nullptr : &it->second;
  }

  // Replaces a value that is there.
  T* Put(ProcessSetId set, const std::string& name, T value) {
    const auto [it, added] = sets_[set].insert_or_assign(name, std::move(value));
    if (added) ++size_;
    return &it->second;
  }

  void Erase(ProcessSetId set, const std::string& name) {
    const auto by_name = sets_.find(set);
    if (by_name != sets_.end()) size_ -= by_name->second.erase(name);
  }

  void EraseSet(ProcessSetId set) {
    const auto by_name = sets_.find(set);
    if (by_name == sets_.end()) return;
    size_ -= by_name->second.size();
    sets_.erase(by_name);
  }

  // In no particular order.
  template <typename Action>
  void ForEach(const Action& action) const {
    for (const auto& set : sets_) {
      for (const auto& item : set.second) action(item.second);
    }
  }

  size_t size() const { return size_; }

 private:
  std::map<ProcessSetId, std::unordered_map<std::string, T>> sets_;
  size_t size_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_NAME_TABLE_H_
