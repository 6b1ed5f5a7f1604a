#include "ops/runtime/transport/cgroup_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace tfring {
namespace {

// Where a hierarchy of memory groups is mounted, and which of its groups that place shows.
struct CgroupHierarchy {
  bool unified = false;  // version 2
  std::string mount_point;
  std::string shown;
};

// In /proc/self/mountinfo a space is written as \040.
std::string Unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool octal = text[i] == '\\' && i + 3 < text.size();
    out += octal ? static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8)) : text[i];
    if (octal) i += 3;
  }
  return out;
}

bool HasWord(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// Lines: id parent device root mount-point options [tags...] - type source super-options
std::vector<CgroupHierarchy> Mounted(const std::string& root) {
  std::vector<CgroupHierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash));
    std::istringstream right(line.substr(dash + 3));
    std::string skipped, shown, point, type, source, options;
    left >> skipped >> skipped >> skipped >> shown >> point;
    right >> type >> source >> options;
    const bool unified = type == "cgroup2";
    if (!unified && !(type == "cgroup" && HasWord(options, "memory"))) continue;
    found.push_back({unified, Unescape(point), Unescape(shown)});
  }
  return found;
}

// The group of this process in a hierarchy; false if it is in none. Lines: id:controllers:path
bool OwnGroup(const std::string& root, bool unified, std::string* path) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (unified ? line.rfind("0::", 0) != 0 : !HasWord(controllers, "memory")) continue;
    *path = line.substr(second + 1);
    return true;
  }
  return false;
}

// Pages of files that were not used lately: they count as used, but the kernel gives them back when
// memory is wanted. 0 if it is not known.
uint64_t UnusedFilePages(const std::string& directory, bool unified) {
  std::ifstream file(directory + "/memory.stat");
  const std::string wanted = unified ? "inactive_file" : "total_inactive_file";
  std::string name;
  uint64_t bytes = 0;
  while (file >> name >> bytes) {
    if (name == wanted) return bytes;
  }
  return 0;
}

// What one group leaves; UINT64_MAX without a limit, or if its files cannot be read.
uint64_t HeadroomOf(const std::string& directory, bool unified) {
  uint64_t limit = 0;
  uint64_t used = 0;
  std::ifstream limit_file(directory + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!(limit_file >> limit)) return UINT64_MAX;  // no such file, or the word "max"
  std::ifstream used_file(directory + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!(used_file >> used)) return UINT64_MAX;
  // Version 1 has no word for "no limit", but a number that no machine has.
  if (limit >= uint64_t{1} << 62) return UINT64_MAX;
  used -= std::min(used, UnusedFilePages(directory, unified));
  return limit > used ? limit - used : 0;
}

}  // namespace

uint64_t CgroupHeadroom(const std::string& root) {
  uint64_t least = UINT64_MAX;
  for (const CgroupHierarchy& hierarchy : Mounted(root)) {
    std::string group;
    if (!OwnGroup(root, hierarchy.unified, &group)) continue;
    // In a container the mount may show the process's own group as its root.
    const std::string& shown = hierarchy.shown;
    if (shown != "/" && (group + "/").rfind(shown + "/", 0) == 0) group.erase(0, shown.size());
    for (bool at_top = false; !at_top;) {
      at_top = group.empty() || group == "/";
      least = std::min(least, HeadroomOf(root + hierarchy.mount_point + group, hierarchy.unified));
      const size_t last = group.rfind('/');
      group.erase(last == std::string::npos ? 0 : last);
    }
  }
  return least;
}

bool LeavesHalf(uint64_t headroom, uint64_t bytes, uint64_t processes) {
  return bytes <= headroom / 2 / processes;
}

}  // namespace tfring
