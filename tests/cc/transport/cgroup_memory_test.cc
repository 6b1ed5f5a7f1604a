// Memory limits of cgroups, read from files as the kernel writes them.
#include "ops/runtime/transport/cgroup_memory.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/cc/test.h"

namespace tfring::cgroup_memory_test {
namespace {

// What a system with these files allows. Gone with the folder at the end.
uint64_t HeadroomWith(const std::map<std::string, std::string>& files) {
  char name[] = "/tmp/tfring_cgroup_XXXXXX";
  const std::string root = mkdtemp(name);
  for (const auto& [path, text] : files) {
    const std::filesystem::path file = root + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  const uint64_t headroom = CgroupHeadroom(root);
  std::filesystem::remove_all(root);
  return headroom;
}

const char kMountV1[] =
    "22 1 0:20 / /proc rw - proc proc rw\n"
    "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "33 23 0:29 / /sys/fs/cgroup/memory rw,nosuid shared:15 - cgroup cgroup rw,memory";
const char kMountV2[] = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw";

TEST(NoGroupsNoLimit) {
  EXPECT_EQ(HeadroomWith({}), UINT64_MAX);
  EXPECT_EQ(HeadroomWith({{"/proc/self/mountinfo", kMountV2},
                          {"/proc/self/cgroup", "0::/a"},
                          {"/sys/fs/cgroup/a/memory.max", "max"}}),
            UINT64_MAX);
}

TEST(LimitOfVersion1) {
  const std::string memory = "/sys/fs/cgroup/memory";
  EXPECT_EQ(HeadroomWith({{"/proc/self/mountinfo", kMountV1},
                          {"/proc/self/cgroup", "4:cpu:/x\n3:memory:/job/step"},
                          {memory + "/memory.limit_in_bytes", "9223372036854771712"},
                          {memory + "/memory.usage_in_bytes", "5000"},
                          {memory + "/job/memory.limit_in_bytes", "1000"},
                          {memory + "/job/memory.usage_in_bytes", "400"},
                          {memory + "/job/step/memory.limit_in_bytes", "9223372036854771712"},
                          {memory + "/job/step/memory.usage_in_bytes", "300"}}),
            600u);
}

TEST(LeastOverTheGroupsAboveInVersion2) {
  const std::string top = "/sys/fs/cgroup";
  std::map<std::string, std::string> files = {
      {"/proc/self/mountinfo", kMountV2},   {"/proc/self/cgroup", "0::/a/b/c"},
      {top + "/a/memory.max", "5000"},      {top + "/a/memory.current", "4900"},
      {top + "/a/b/memory.max", "max"},     {top + "/a/b/c/memory.max", "2000"},
      {top + "/a/b/c/memory.current", "10"}};
  EXPECT_EQ(HeadroomWith(files), 100u);
  files[top + "/a/memory.current"] = "6000";
  EXPECT_EQ(HeadroomWith(files), 0u);
}

// A job that has read its dataset has a group full of pages that the kernel gives back on demand.
TEST(PagesOfFilesAreNoUse) {
  const std::string v2 = "/sys/fs/cgroup/a";
  EXPECT_EQ(HeadroomWith({{"/proc/self/mountinfo", kMountV2},
                          {"/proc/self/cgroup", "0::/a"},
                          {v2 + "/memory.max", "1000"},
                          {v2 + "/memory.current", "990"},
                          {v2 + "/memory.stat",
                           "anon 80\nfile 900\ninactive_anon 70\ninactive_file 600\n"
                           "active_file 300"}}),
            610u);
  const std::string v1 = "/sys/fs/cgroup/memory/m";
  EXPECT_EQ(
      HeadroomWith({{"/proc/self/mountinfo", kMountV1},
                    {"/proc/self/cgroup", "3:memory:/m"},
                    {v1 + "/memory.limit_in_bytes", "1000"},
                    {v1 + "/memory.usage_in_bytes", "1000"},
                    {v1 + "/memory.stat",
                     "cache 900\ninactive_file 5\ntotal_cache 900\ntotal_inactive_file 400"}}),
      400u);
  // The files are not read at one moment.
  EXPECT_EQ(HeadroomWith({{"/proc/self/mountinfo", kMountV2},
                          {"/proc/self/cgroup", "0::/a"},
                          {v2 + "/memory.max", "1000"},
                          {v2 + "/memory.current", "100"},
                          {v2 + "/memory.stat", "inactive_file 300"}}),
            1000u);
}

TEST(AMountThatShowsTheOwnGroupAsItsRoot) {
  // As in a container without a cgroup namespace.
  const std::string mount =
      "31 23 0:27 /docker/abc /sys/fs/cgroup/mem\\040ory ro - cgroup cgroup rw,memory";
  const std::string top = "/sys/fs/cgroup/mem ory";
  EXPECT_EQ(HeadroomWith({{"/proc/self/mountinfo", mount},
                          {"/proc/self/cgroup", "3:memory:/docker/abc"},
                          {top + "/memory.limit_in_bytes", "700"},
                          {top + "/memory.usage_in_bytes", "300"}}),
            400u);
  // Both versions at once: the least of both.
  EXPECT_EQ(HeadroomWith({{"/proc/self/mountinfo", std::string(kMountV2) + "\n" + kMountV1},
                          {"/proc/self/cgroup", "3:memory:/m\n0::/"},
                          {"/sys/fs/cgroup/memory.max", "90"},
                          {"/sys/fs/cgroup/memory.current", "40"},
                          {"/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "70"},
                          {"/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "30"}}),
            40u);
}

// Ranks of one group that begin at the same time all see the same headroom.
TEST(HalfOfTheHeadroomIsForAllProcesses) {
  EXPECT_TRUE(LeavesHalf(180, 10, 9));
  EXPECT_TRUE(!LeavesHalf(179, 10, 9));
  EXPECT_TRUE(LeavesHalf(UINT64_MAX, uint64_t{1} << 40, 64));
}

}  // namespace
}  // namespace tfring::cgroup_memory_test
