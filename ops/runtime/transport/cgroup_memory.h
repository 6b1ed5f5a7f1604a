#ifndef TFRING_OPS_RUNTIME_TRANSPORT_CGROUP_MEMORY_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_CGROUP_MEMORY_H_

#include <cstdint>
#include <string>

namespace tfring {

// How many bytes the memory cgroups of this process still allow: the least over its group and all
// groups above it that can be seen, of version 1 and version 2. Pages of files that the kernel
// would give back count as free. UINT64_MAX if there is no limit. `root` is put before all paths
// that are read; tests use it.
uint64_t CgroupHeadroom(const std::string& root = "");

// Whether `processes` that see this headroom, and each of which then takes `bytes`, leave half of
// it for everything else.
bool LeavesHalf(uint64_t headroom, uint64_t bytes, uint64_t processes);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_CGROUP_MEMORY_H_
